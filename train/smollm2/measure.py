"""Accept lengths of a draft, from the recorder and replay of `benchmarks.traces`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.traces import record
from benchmarks.traces.replay import DEPTHS, by_category, tokens_a_round
from sglang_adaptive.lab.traces import Trace, read
from train.smollm2.plan import Plan


def measure(target: Path, draft: Path, prompts: Path, out: Path, plan: Plan, device: str, name: str) -> dict[str, Any]:
    """Record greedy answers to *prompts* into OUT/NAME.npz; write and return tokens per round in OUT/NAME.json."""
    trace = out / f"{name}.npz"
    words = ["--target", target, "--draft", draft, "--prompts", prompts, "--out", trace, "--chat", "--device", device]
    # Float32 on a GPU, too: bfloat16's rounding is not a property of the draft.
    words += ["--positions", plan.positions, "--wave", 480, "--batch-tokens", plan.record_tokens, "--dtype", "float32"]
    if plan.measured is not None:
        words += ["--questions", plan.measured]
    record.main([str(word) for word in words])
    recorded = read(trace)
    about = {key: recorded.about[key] for key in ("target", "draft", "prompts", "hardware", "date")}
    found = about | {"requests": len(recorded.category), "tokens_a_round": accept_lengths(recorded)}
    (out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def accept_lengths(trace: Trace) -> dict[str, dict[str, dict[str, float]]]:
    """Return tokens per round by steps, by category and over all: as recorded, and with exact repetitions cut."""
    return {
        category: {
            kind: {str(steps): round(tokens_a_round(one, steps), 4) for steps in DEPTHS}
            for kind, one in (("as_recorded", part), ("without_repetitions", cut))
        }
        for category, part, cut in by_category(trace)
    }
