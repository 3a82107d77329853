"""The tables of published launch lines in docs/launch-lines.md, from tests/launch_lines/.

    python -m scripts.launch_lines

runs the doctor's code on every line and rewrites expected.json; ``make tables`` then writes the tables.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.architectures import LOSSLESS, OPEN, verdict_on
from tests.launch_lines import verdicts

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "architectures"

SHORT = {
    "speculative_eagle_topk=": "a tree of drafts",
    "local-control-broadcast": "attention DP with local control",
    "attention DP": "attention DP",
    "enable_multi_layer_eagle": "drafts of several layers with attention DP",
    "enable_two_batch_overlap": "two-batch overlap",
    "a prefill server": "a prefill server drafts nothing",
    "LoRA": "LoRA",
}
"""Reasons as named in the table; any other algorithm appears under its own name."""


RAN_AS = {
    "glm-moe-dsa": "deepseek-v3.2", "kimi-k2.5": "kimi-k2", "qwen3.5-moe": "qwen3.6-moe", "qwen2": "qwen3",
    "DFLASH": "dflash", "NGRAM": "ngram", "STANDALONE": "standalone",
}  # fmt: skip
"""By configuration or kind of draft, the family of `benchmarks.architectures` that runs it, if it has another name."""


def tables() -> dict[str, Iterator[str]]:
    """Return both tables by their names in the page."""
    return {"launch-line-counts": _summary(), "launch-lines": _table()}


def _summary() -> Iterator[str]:
    """Yield how many lines have each verdict."""
    found, lines = verdicts.expected(), verdicts.lines()
    yield f"| Verdict | of {len(found)} lines |\n|---|---|"
    for words, count in Counter(_verdict(line, found[line["name"]], []) for line in lines).most_common():
        yield f"| {words} | {count} |"
    renamed = sum(bool(one["renamed"]) for one in found.values())
    yield f"| of all these, with flags that SGLang 0.5.23 renamed, replaced or dropped | {renamed} |"


def _table() -> Iterator[str]:
    """Yield one row per line, by model."""
    expected = verdicts.expected()
    yield "| Model | Line | Add `--speculative-adaptive-config` | Verdict | Write differently |\n|---|---|---|---|---|"
    for line in sorted(verdicts.lines(), key=lambda line: (line["model"].rpartition("/")[2].lower(), line["name"])):
        found = expected[line["name"]]
        model = line["model"].rstrip("/").rpartition("/")[2].replace("$", "")
        yield (
            f"| {model} | {line['name']}: {_setup(line)} | `{verdicts.preset(line)}` | "
            f"{_verdict(line, found, found.get('less') or [])} | {_changes(found)} |"
        )


def _setup(line: dict[str, Any]) -> str:
    flags = {flag: values for flag, values in verdicts.flags(line["argv"])}

    def value(*names: str) -> str | None:
        return next((flags[name][0] for name in names if flags.get(name)), None)

    steps, topk = value("--speculative-num-steps"), value("--speculative-eagle-topk")
    drafts = f" {steps} steps" if steps else ""
    tree = f", topk {topk}" if topk not in (None, "1") else ""
    tp = value("--tp", "--tp-size", "--tensor-parallel-size")
    dp = value("--dp", "--dp-size", "--data-parallel-size", "--attn-dp-size")
    sizes = [f"{name} {size}" for name, size in (("TP", tp), ("DP", dp)) if size not in (None, "1")]
    role = [] if line["role"] == "server" else [line["role"]]
    return ", ".join([f"{line['algorithm']}{drafts}{tree}", *sizes, *role])


def _verdict(line: dict[str, Any], found: dict[str, Any], less: list[str]) -> str:
    if found["reason"] is None:
        without = f": without {'; '.join(words.partition(':')[0] for words in less)}" if less else ""
        return f"{found['verdict']}{without}{'' if _ran(line) else ', not run'}"
    named = next((short for words, short in SHORT.items() if words in found["reason"]), None)
    return f"static: {named or found['reason'].partition('=')[2].partition(' ')[0]}"


def _ran(line: dict[str, Any]) -> bool:
    """Whether an NVIDIA GPU has run the kind of draft and architecture of *line* with this package, as a small shape.

    A decode server has run on a CPU only.
    """
    if line["role"] == "decode" or "amd" in line["kinds"]:
        return False
    configuration = verdicts.configuration(line)
    family = RAN_AS.get(line["algorithm"]) or RAN_AS.get(configuration, configuration)
    path = RESULTS / f"{family}.json"
    return path.exists() and verdict_on(json.loads(path.read_text())) in (LOSSLESS, OPEN)


def _changes(found: dict[str, Any]) -> str:
    changes = {**found["renamed"], **found.get("write", {}), **dict.fromkeys(found["leave_out"])}
    return "; ".join(f"`{old}`: {f'`{new}`' if new else 'leave out'}" for old, new in changes.items())


def _ask() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    with verdicts.launcher():
        found = {line["name"]: verdicts.verdict(line) for line in verdicts.lines()}
    (verdicts.HERE / "expected.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    _ask()
