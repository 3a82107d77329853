"""A grammar of outlines beside a request without one, on SGLang's scheduler in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_adaptive.policy.observation import RoundNote
from tests.engine.stepping import EAGLE3, TIERS, Stepped

GRAMMAR = r"( hens\n[0-9]{4} brown){1,3}!"
OUTLINES = ("--grammar-backend", "outlines", "--disable-overlap-schedule")
_FIXED = (*EAGLE3, "--speculative-num-steps", "3", "--speculative-num-draft-tokens", "4")
SETUPS: dict[str, tuple[dict[str, Any] | None, tuple[str, ...]]] = {
    "none": (None, OUTLINES),
    "static": (None, (*_FIXED, *OUTLINES)),
    "adaptive": ({"1": {"candidate_steps": TIERS}}, (*EAGLE3, *OUTLINES)),
}


def run(folder: Path, setup: str) -> dict[str, Any]:
    """Return the outputs of one of SETUPS and the steps of the rounds."""
    config, more = SETUPS[setup]
    lab = Stepped(folder, config, *more)
    steps: list[tuple[bool, int]] = []

    def told(counts: list[int], batch_size: int, note: RoundNote) -> None:
        steps.append(("g" in note.requests, note.steps))

    if lab.controller is not None:
        lab.hear(told)
        lab.force(TIERS[-1])

    ids = lab.encode("6024 brown hens\n6025 brown")
    constrained = {"regex": GRAMMAR, "ignore_eos": False}
    return {**lab.serve({"g": (0, ids, 60, constrained), "a": (0, ids, 120, {})}), "steps": steps}
