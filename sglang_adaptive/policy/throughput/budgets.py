"""Verify budgets: what a budget keeps of a round's tokens, and which one goes with which steps.

Rounds of ``s`` steps that verify ``b`` drafts a request, the same number of each, lose ``E[s] - E[b]`` tokens against
those that verify all. The likeliest ``b`` a request lose less: the share that they save is learnt by ``s`` and ``b``,

    share(s, b) = (saved + PRIOR * b / s) / (lost + PRIOR)          E[s, b] = E[b] + share * (E[s] - E[b])

with ``lost`` what the former, ``saved`` what the latter kept of it, counted in the same rounds. It hardly depends on
the batch or on how hard the text is (on recorded text 0.43 to 0.50 for 5 steps and 2 drafts at batch 8 to 64), so what
does not run stays known.

Steps ``s`` with a budget ``b`` promise as much as steps ``s`` without one would whose rounds took

    T(n, s, b) * E[s] / E[s, b]

seconds. The least of these over all budgets stands for ``s`` in a row of round times, and everything that compares
steps stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sglang_adaptive.policy.observation import BudgetEvidence
from sglang_adaptive.policy.throughput.acceptance import AcceptanceEstimator
from sglang_adaptive.policy.throughput.cost import RoundTimeRow

PRIOR = 48.0
"""Lost tokens that the guess ``b / s`` weighs as: as many as one round of 64 requests brings."""
MEMORY = 256.0
"""Observations of a budget after which one counts 1/e."""
FOLD_ROUNDS = 32
"""Rounds from one folding of a row to the next, while its times stay."""
MARGIN = 0.005
"""Gain that another budget must promise, for the same steps."""
LEAST_REQUESTS = 8
"""Requests from which on a budget may pay: below, a verified token costs next to nothing."""


class BudgetYields:
    """The share that each budget saves, by steps and budget."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], list[float]] = {}
        """Saved and lost tokens, the latest rounds weighing most."""

    def learn(self, evidence: BudgetEvidence) -> None:
        """Take in what a round says of all budgets below its own."""
        for budget, ranked in evidence.ranked.items():
            uniform = evidence.uniform[budget]
            counts = self._counts.setdefault((evidence.steps, budget), [0.0, 0.0])
            for at, more in enumerate((ranked - uniform, evidence.whole - uniform)):
                counts[at] += more - counts[at] / MEMORY

    def share(self, steps: int, budget: int) -> float:
        """Return the part that *budget* saves of what a uniform cut to as many drafts loses."""
        saved, lost = self._counts.get((steps, budget), (0.0, 0.0))
        return (saved + PRIOR * budget / steps) / (lost + PRIOR)

    def as_list(self) -> list[dict[str, float]]:
        """Return what was seen as builtins: the share that is saved, and the lost tokens behind it."""
        return [
            {"steps": steps, "budget": budget, "share": self.share(steps, budget), "lost": lost}
            for (steps, budget), (_, lost) in sorted(self._counts.items())
        ]


class Budgets:
    """Folds rows, and remembers which budget each has.

    A row is folded anew when its times change, and otherwise every ``FOLD_ROUNDS``.
    """

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
            # By budget, the seconds that it stands for, and their doubt; None is a round that verifies all. That one
            # counts as faster by its standard deviation: if it was never timed it then stands for its steps, is
            # probed as they are, and from then on compared by what it takes.
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
