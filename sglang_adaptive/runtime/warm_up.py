"""Chooses the steps of warm-up rounds: all in turn, so that all have run before the first request of a client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

MOST_ROUNDS = 20_000
"""Rounds after which a warm-up ends by itself."""


class WarmUp:
    """Counts rounds by batch size and depth; deterministic, so that tensor-parallel ranks agree."""

    def __init__(self, reachable: Callable[[int], Sequence[int]]) -> None:
        """*reachable* returns the steps that may run at a batch size."""
        self._reachable = reachable
        self._counts: Counter[tuple[int, int]] = Counter()
        self.rounds = 0

    def choose(self, batch_size: int) -> int:
        """Return the steps that ran least at *batch_size*, the fewest of those, and count them."""
        steps = min(self._reachable(batch_size), key=lambda steps: (self._counts[batch_size, steps], steps))
        self._counts[batch_size, steps] += 1
        self.rounds += 1
        return steps

    @property
    def overdue(self) -> bool:
        """Whether the warm-up has exceeded MOST_ROUNDS."""
        return self.rounds >= MOST_ROUNDS

    def covered(self) -> list[int]:
        """Return the batch sizes at which all reachable steps have run, ascending."""
        seen = {batch_size for batch_size, _ in self._counts}
        return sorted(size for size in seen if all(self._counts[size, steps] for steps in self._reachable(size)))
