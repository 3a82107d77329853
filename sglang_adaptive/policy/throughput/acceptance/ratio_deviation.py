"""How sure the ratio of two depths' expected tokens is."""

from __future__ import annotations

import math

from sglang_adaptive.policy.throughput.acceptance.estimator import SATURATION, AcceptanceEstimator


def ratio_deviation(acceptance: AcceptanceEstimator, first: int, second: int) -> float:
    """Return the standard deviation of ln(E[tokens | second] / E[tokens | first])."""
    low, high = min(first, second), max(first, second)
    return math.sqrt(
        sum(acceptance.ratio_variance(i) for i, rung in enumerate(acceptance.rungs) if low < rung <= high)
    )


def learnable_deviation(acceptance: AcceptanceEstimator, steps: int, seen: int, rounds: int, requests: int) -> float:
    moves = 0.0
    more = rounds * requests / (1.0 + requests / SATURATION)
    for index, rung in enumerate(acceptance.rungs):
        if seen < rung <= steps:
            share = math.sqrt(more / (more + acceptance.rung_trials(index) + acceptance.shrinkage))
            moves += share * math.sqrt(acceptance.ratio_variance(index))
    return moves
