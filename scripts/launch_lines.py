"""The tables of published launch lines in docs/launch-lines.md, from tests/launch_lines/.

    python -m scripts.launch_lines

runs the doctor's code on every line and rewrites expected.json; ``make tables`` then writes the tables.
"""

from __future__ import annotations

import json
import os
import textwrap
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
    """Return the tables by their names in the page."""
    return {"launch-line-counts": _summary(), "launch-line-flags": _flags(), "launch-lines": _table()}


def _summary() -> Iterator[str]:
    """Yield how many lines have each verdict."""
    found, lines = verdicts.expected(), verdicts.lines()
    counts = Counter(_verdict(line, found[line["name"]], []) for line in lines).most_common()
    told = "; ".join(f"{words} ({count})" for words, count in counts)
    yield textwrap.fill(f"Verdicts on the {len(found)} lines: {told}.", 120)


def _flags() -> Iterator[str]:
    """Yield the flags that SGLang no longer takes, and what to write instead."""
    yield "| Flag of a line | Write | Lines |\n|---|---|---|"
    changes = Counter(
        change for one in verdicts.expected().values() for change in _changes(one) if _flag_only(change[0])
    )
    for (old, new), count in changes.most_common():
        yield f"| `{old}` | {f'`{new}`' if new else 'leave out'} | {count} |"


def _table() -> Iterator[str]:
    """Yield one row for all lines of a model that have the same verdict."""
    found: dict[tuple[str, ...], list[str]] = {}
    for line in sorted(verdicts.lines(), key=lambda line: (_model(line).lower(), line["name"])):
        told = verdicts.expected()[line["name"]]
        verdict = _verdict(line, told, told.get("less") or [])
        values = [change for change in _changes(told) if not _flag_only(change[0])]
        write = "".join(f", {f'write `{new}`' if new else f'leave out `{old}`'}" for old, new in values)
        key = (_model(line), verdicts.preset(line), verdict)
        found.setdefault(key, []).append(f"{line['name']} ({_setup(line)}{write})")
    yield "| Model | Add `--speculative-adaptive-config` | Verdict | Lines |\n|---|---|---|---|"
    for (model, preset, verdict), lines in found.items():
        yield f"| {model} | `{preset}` | {verdict} | {'; '.join(lines)} |"


def _model(line: dict[str, Any]) -> str:
    return str(line["model"].rstrip("/").rpartition("/")[2].replace("$", ""))


def _flag_only(old: str) -> bool:
    """Whether a flag changes whatever its value is."""
    return " " not in old


def _setup(line: dict[str, Any]) -> str:
    flags = {flag: values for flag, values in verdicts.flags(line["argv"])}

    def value(*names: str) -> str | None:
        return next((flags[name][0] for name in names if flags.get(name)), None)

    steps, topk = value("--speculative-num-steps"), value("--speculative-eagle-topk")
    drafts = f" {steps} step{'s' * (steps != '1')}" if steps else ""
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


def _changes(found: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Return what to write differently, as the old text and the new one; None is nothing."""
    return [*found["renamed"].items(), *found.get("write", {}).items(), *((old, None) for old in found["leave_out"])]


def _ask() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    with verdicts.launcher():
        found = {line["name"]: verdicts.verdict(line) for line in verdicts.lines()}
    (verdicts.HERE / "expected.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    _ask()
