"""Rounds that no engine runs, for what measures the policy alone: times of the shipped H200 profile, drawn text."""

from __future__ import annotations

import random

from sglang_adaptive.policy.profile.profile import CostProfile
from sglang_adaptive.policy.profile.profile_json import loads_profile
from sglang_adaptive.policy.profile.shipped import shipped_config

CLOCK_NOISE = 0.02
"""Standard deviation of the logarithm of a round's time."""


def profile() -> CostProfile:
    """Return the round times that were measured on an H200."""
    path = shipped_config("profiles/h200-llama31-8b-eagle3-fa3.json")
    return loads_profile(path.read_text(encoding="utf-8"), str(path))


def seconds(table: CostProfile) -> dict[tuple[int, int], float]:
    """Return the seconds of a round by batch size and steps."""
    return {(cell.batch_size, cell.steps): cell.seconds for cell in table.cells}


def noise(rng: random.Random) -> float:
    """Return a factor that the clock of one round is off by."""
    return rng.lognormvariate(0.0, CLOCK_NOISE)


def accepted(rng: random.Random, steps: int, likely: float, decay: float = 1.0) -> int:
    """Return how many of *steps* drafts are accepted.

    The first is with probability *likely*, each of the next with *decay* times that of the one before.
    """
    for position in range(steps):
        if rng.random() >= likely * decay**position:
            return position
    return steps
