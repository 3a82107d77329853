"""What a budget keeps of a round's tokens.

Rounds of ``s`` steps that verify ``b`` drafts a request, the same number of each, lose ``E[s] - E[b]`` tokens against
those that verify all. The likeliest ``b`` a request lose less: the share that they save is learnt by pair,

    share(s, b) = (saved + PRIOR * b / s) / (lost + PRIOR)          E[s, b] = E[b] + share * (E[s] - E[b])

with ``lost`` what the former, ``saved`` what the latter kept of it, counted in the same rounds. It hardly depends on
the batch or on how hard the text is (on recorded text 0.43 to 0.50 for 5 steps and 2 drafts at batch 8 to 64), so pairs
that do not run stay known.
"""

from __future__ import annotations

from sglang_adaptive.policy.observation import BudgetEvidence

PRIOR = 48.0
"""Lost tokens that the guess ``b / s`` weighs as: as many as one round of 64 requests brings."""
MEMORY = 256.0
"""Looks at a pair after which one counts 1/e."""


class BudgetYields:
    """The share that each budget saves, by steps and budget."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], list[float]] = {}
        """Saved and lost tokens, the latest looks weighing most."""

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
        """Return the pairs that were seen as builtins: the share that is saved, and the lost tokens behind it."""
        return [
            {"steps": steps, "budget": budget, "share": self.share(steps, budget), "lost": lost}
            for (steps, budget), (_, lost) in sorted(self._counts.items())
        ]
