"""How acceptance falls from one draft position to the next: a property of the draft, learnt slowly."""

from __future__ import annotations

import math

PRIOR_STEP = 0.965
"""Ratio of a position's acceptance to that of the position before, until rounds say otherwise."""
PRIOR_TRIALS = 60.0
PRIOR_SPREAD = 0.05
"""Standard deviation of the ratio between drafts."""
LOWEST, HIGHEST = 0.5, 1.15


class Shape:
    """``steps[j]``: expected acceptance of index ``j`` as a share of index ``j - 1``; ``steps[0]`` is 1.

    Learnt from the same counts as the acceptances, with ``h_{j-1}`` as the reference:

        steps_j = (hits_j + K * PRIOR_STEP) / (reached_j * h_{j-1} + K)
    """

    __slots__ = ("_expected", "_growth", "_hits", "_seen_hits", "_seen_reached", "_weight", "steps")

    def __init__(self, depth: int, memory_updates: float) -> None:
        self.steps = [1.0] + [PRIOR_STEP] * (depth - 1)
        self._growth = 1.0 / (1.0 - 1.0 / memory_updates)
        self._weight = 1.0
        self._hits, self._expected = [0.0] * depth, [0.0] * depth
        self._seen_hits, self._seen_reached = [0.0] * depth, [0.0] * depth

    def spread(self, index: int) -> float:
        """Return the standard deviation of ``steps[index]``: between drafts at first, less as it is learnt."""
        return PRIOR_SPREAD * math.sqrt(PRIOR_TRIALS / (PRIOR_TRIALS + self._expected[index] / self._weight))

    def adopt(self, other: Shape, shared: int) -> None:
        """Begin from what *other* has learnt about the first *shared* positions."""
        scale = self._weight / other._weight
        self.steps[:shared] = other.steps[:shared]
        self._hits[:shared] = [scale * value for value in other._hits[:shared]]
        self._expected[:shared] = [scale * value for value in other._expected[:shared]]

    def restart(self, hits: list[float], reached: list[float]) -> None:
        """Take *hits* and *reached* as already learnt from."""
        self._seen_hits, self._seen_reached = hits[:], reached[:]

    def learn(self, hits: list[float], reached: list[float], weight: float, conditional: list[float]) -> None:
        """Learn from what was added to the counts since the last call; *weight* is what one trial adds now."""
        self._weight *= self._growth
        scale = self._weight / weight
        prior = PRIOR_TRIALS * self._weight
        for index in range(1, len(hits)):
            self._hits[index] += scale * (hits[index] - self._seen_hits[index])
            self._expected[index] += scale * (reached[index] - self._seen_reached[index]) * conditional[index - 1]
            step = (self._hits[index] + prior * PRIOR_STEP) / (self._expected[index] + prior)
            self.steps[index] = min(HIGHEST, max(LOWEST, step))
        self.restart(hits, reached)
        if self._weight > 1e9:
            self._hits = [value / self._weight for value in self._hits]
            self._expected = [value / self._weight for value in self._expected]
            self._weight = 1.0
