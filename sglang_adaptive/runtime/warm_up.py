"""Which depth runs in a round of the warm-up: each in turn, so that all have run before a client waits for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

MOST_ROUNDS = 20_000
"""A warm-up that nobody ends is over after so many rounds."""


class WarmUp:
    """Counts rounds by batch size and depth; deterministic, so that tensor-parallel ranks agree."""

    def __init__(self, reachable: Callable[[int], Sequence[int]]) -> None:
        """*reachable* returns the depths that may run at a batch size."""
        self._reachable = reachable
        self._counts: Counter[tuple[int, int]] = Counter()
        self.rounds = 0

    def choose(self, batch_size: int) -> int:
        """Return the depth that ran least at *batch_size*, the shallowest of those, and count it."""
        steps = min(self._reachable(batch_size), key=lambda steps: (self._counts[batch_size, steps], steps))
        self._counts[batch_size, steps] += 1
        self.rounds += 1
        return steps

    @property
    def overdue(self) -> bool:
        """Whether its end must have been lost."""
        return self.rounds >= MOST_ROUNDS

    def covered(self) -> list[int]:
        """Return the batch sizes at which every reachable depth has run, ascending."""
        seen = {batch_size for batch_size, _ in self._counts}
        return sorted(size for size in seen if all(self._counts[size, steps] for steps in self._reachable(size)))
