"""How sure expected tokens are, from the deviations of the positions behind them.

With ``d_j`` the relative deviation of ``h_j`` and independent positions, ``ln E[tokens | s]`` moves by
``(E_s - E_{j-1}) / E_s * d_j`` when ``h_j`` does: every token past position ``j - 1`` hangs on it.
"""

from __future__ import annotations

import math

from sglang_adaptive.policy.throughput.acceptance.estimator import SATURATION, AcceptanceEstimator

LOWEST = 0.02
"""Relative deviations are taken against at least this acceptance."""


def ratio_deviation(acceptance: AcceptanceEstimator, first: int, second: int) -> float:
    """Return the standard deviation of ln(E[tokens | second] / E[tokens | first])."""
    variance = 0.0
    for position in range(1, max(first, second) + 1):
        share = _hanging(acceptance, second, position) - _hanging(acceptance, first, position)
        variance += (share * _relative_deviation(acceptance, position)) ** 2
    return math.sqrt(variance)


def learnable_deviation(acceptance: AcceptanceEstimator, steps: int, seen: int, rounds: int, requests: int) -> float:
    """Return how far ln E[tokens | steps] may move by drafting *steps* for *rounds* rounds of *requests*.

    Positions up to *seen* are drafted anyway. A position of deviation ``d`` and ``k`` trials that gains ``m`` more is
    expected to move by ``d * sqrt(m / (m + k))``. Positions that were never reached are wrong together, so their
    moves add up.
    """
    tokens = acceptance.tokens
    moves = 0.0
    for position in range(seen + 1, steps + 1):
        reached = tokens[position - 1] - (tokens[position - 2] if position > 1 else 0.0)
        more = rounds * reached * requests / (1.0 + requests / SATURATION)
        share = math.sqrt(more / (more + acceptance.trials(position) + acceptance.shrinkage + 1e-9))
        moves += _hanging(acceptance, steps, position) * share * _relative_deviation(acceptance, position)
    return moves


def _hanging(acceptance: AcceptanceEstimator, steps: int, position: int) -> float:
    """Return the share of E[tokens | steps] that hangs on *position*."""
    tokens = acceptance.tokens
    return max(0.0, tokens[steps] - tokens[position - 1]) / tokens[steps]


def _relative_deviation(acceptance: AcceptanceEstimator, position: int) -> float:
    return acceptance.deviation(position) / max(acceptance.conditional[position - 1], LOWEST)
