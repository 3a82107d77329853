"""Verify budgets: how many of a round's tokens a budget keeps, and which budget goes with which steps.

Rounds of ``s`` steps that verify the first ``b`` drafts of each request lose ``E[s] - E[b]`` tokens against rounds that
verify all. Verifying the likeliest ``b`` per request loses less. The share saved is learned by ``s`` and ``b``,

    share(s, b) = (saved + PRIOR * b / s) / (lost + PRIOR)          E[s, b] = E[b] + share * (E[s] - E[b])

where ``lost`` counts what the uniform cut loses, and ``saved`` how much of it the likeliest drafts keep in the same
rounds. The share hardly depends on the batch or on how hard the text is (on recorded text 0.43 to 0.50 for 5 steps and
2 drafts at batch 8 to 64), so it stays valid for combinations that do not run.

Steps ``s`` with a budget ``b`` are as fast as steps ``s`` without one would be if their rounds took

    T(n, s, b) * E[s] / E[s, b]

seconds. The minimum over all budgets replaces the time of ``s`` in a row of round times, so the code that compares
steps needs no change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sglang_adaptive.policy.observation import BudgetEvidence
from sglang_adaptive.policy.throughput.acceptance import AcceptanceEstimator
from sglang_adaptive.policy.throughput.cost import RoundTimeRow

PRIOR = 48.0
"""Weight of the guess ``b / s`` in lost tokens: as many as one round of 64 requests yields."""
MEMORY = 256.0
"""Observations of a budget after which one counts 1/e."""
FOLD_ROUNDS = 32
"""Rounds between two folds of a row while its times do not change."""
MARGIN = 0.005
"""Gain that another budget must promise for the same steps."""
LEAST_REQUESTS = 8
"""Minimum batch size at which a budget may pay: below, a verified token costs almost nothing."""


class BudgetYields:
    """The share that each budget saves, by steps and budget."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], list[float]] = {}
        """Saved and lost tokens, weighted toward the latest rounds."""

    def learn(self, evidence: BudgetEvidence) -> None:
        """Learn from a round about all budgets below its own."""
        for budget, ranked in evidence.ranked.items():
            uniform = evidence.uniform[budget]
            counts = self._counts.setdefault((evidence.steps, budget), [0.0, 0.0])
            for at, more in enumerate((ranked - uniform, evidence.whole - uniform)):
                counts[at] += more - counts[at] / MEMORY

    def share(self, steps: int, budget: int) -> float:
        """Return the share that *budget* saves of the tokens lost by a uniform cut to as many drafts."""
        saved, lost = self._counts.get((steps, budget), (0.0, 0.0))
        return (saved + PRIOR * budget / steps) / (lost + PRIOR)

    def as_list(self) -> list[dict[str, float]]:
        """Return the shares saved and the lost tokens behind them, as builtins."""
        return [
            {"steps": steps, "budget": budget, "share": self.share(steps, budget), "lost": lost}
            for (steps, budget), (_, lost) in sorted(self._counts.items())
        ]


class Budgets:
    """Folds the best budgets into rows of round times.

    A row is folded again when its times change, and otherwise every ``FOLD_ROUNDS`` rounds.
    """

    def __init__(self) -> None:
        self.yields = BudgetYields()
        self._folded: dict[int, tuple[RoundTimeRow, int, RoundTimeRow]] = {}
        """By padded batch size: the row that was folded, the round, and the result."""

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
            # By budget, equivalent seconds and their deviation; None is a round that verifies all. It counts as faster
            # by its standard deviation, so that an untimed one represents its steps and gets probed. Once timed, it is
            # compared by its actual time.
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
