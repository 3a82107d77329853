"""The best budget of each number of steps, so that a choice among pairs is one among steps.

A pair of steps ``s`` and budget ``b`` promises as much as steps ``s`` without a budget would whose rounds took

    T(n, s, b) * E[s] / E[s, b]

seconds. The least of these over all budgets stands for ``s`` in a row of round times, and everything that compares
steps stays as it is. Rows are folded anew when times change, and otherwise every ``FOLD_ROUNDS``. Beside budgets, a
round that verifies all counts as faster than believed by its standard deviation: one that was never timed then stands
for its steps, is probed as they are, and from then on compared by what it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sglang_adaptive.policy.throughput.acceptance.estimator import AcceptanceEstimator
from sglang_adaptive.policy.throughput.budgets.yields import BudgetYields
from sglang_adaptive.policy.throughput.cost.round_times import RoundTimeRow

FOLD_ROUNDS = 32
"""Rounds from one folding of a row to the next, while its times stay."""
MARGIN = 0.005
"""Gain that another budget must promise, for the same steps."""
LEAST_REQUESTS = 8
"""Requests from which on a budget may pay: below, a verified token costs next to nothing."""


class Budgets:
    """Folds rows, and remembers which budget each has."""

    def __init__(self) -> None:
        self.yields = BudgetYields()
        self._folded: dict[int, tuple[RoundTimeRow, int, RoundTimeRow]] = {}
        """By padded batch size: the row that was folded, when, and what came of it."""

    def fold(self, row: RoundTimeRow, acceptance: AcceptanceEstimator, now: int) -> RoundTimeRow:
        """Return *row* with the best budget of each number of steps; *now* counts rounds."""
        if not row.packed or row.padded < LEAST_REQUESTS:
            return row
        before = self._folded.get(row.padded)
        if before is not None and before[0] is row and now - before[1] < FOLD_ROUNDS:
            return before[2]
        folded = self._fold(row, acceptance, {} if before is None else before[2].budgets)
        self._folded[row.padded] = row, now, folded
        return folded

    def _fold(self, row: RoundTimeRow, acceptance: AcceptanceEstimator, before: Mapping[int, int]) -> RoundTimeRow:
        tokens = acceptance.tokens
        seconds, deviation = dict(row.seconds), dict(row.deviation)
        budgets: dict[int, int] = {}
        for steps in row.allowed:
            # By budget, the seconds that it stands for, and their doubt; None is a round that verifies all.
            found: dict[int | None, tuple[float, float]] = {None: (seconds[steps] * (1.0 - deviation[steps]), 0.0)}
            for budget, took, doubt in row.packed.get(steps, ()):
                kept = tokens[budget] + self.yields.share(steps, budget) * (tokens[steps] - tokens[budget])
                found[budget] = took * tokens[steps] / kept, doubt
            best = min(found, key=lambda budget: found[budget][0])
            former = before.get(steps)
            if former in found and found[best][0] > (1.0 - MARGIN) * found[former][0]:
                best = former
            if best is not None:
                budgets[steps] = best
                seconds[steps], deviation[steps] = found[best]
        rungs = tuple((rung, steps, seconds[steps]) for rung, steps, _ in row.rungs)
        return replace(row, rungs=rungs, seconds=seconds, deviation=deviation, budgets=budgets)
