"""Chooses the steps and budgets of warm-up rounds: all in turn, so that they have run before a client asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

Place = tuple[int, int | None]
"""Steps, and the budget of the round; None for all drafts."""

MOST_ROUNDS = 20_000
"""Rounds after which a warm-up ends by itself."""


class WarmUp:
    """Counts rounds by batch size and place; deterministic, so that tensor-parallel ranks agree."""

    def __init__(self, reachable: Callable[[int], Sequence[Place]]) -> None:
        """*reachable* returns what may run at a batch size, first what is to run first."""
        self._reachable = reachable
        self._counts: Counter[tuple[int, Place]] = Counter()
        self.rounds = 0

    def choose(self, batch_size: int) -> Place:
        """Return the place that ran least at *batch_size*, the first of those, and count it."""
        place = min(self._reachable(batch_size), key=lambda place: self._counts[batch_size, place])
        self._counts[batch_size, place] += 1
        self.rounds += 1
        return place

    @property
    def overdue(self) -> bool:
        """Whether the warm-up has exceeded MOST_ROUNDS."""
        return self.rounds >= MOST_ROUNDS

    def covered(self) -> list[int]:
        """Return the batch sizes at which all reachable places have run, ascending."""
        seen = {batch_size for batch_size, _ in self._counts}
        return sorted(size for size in seen if all(self._counts[size, place] for place in self._reachable(size)))
