"""The batch size that a load stands at, without the dips when a request has ended and its successor is not in yet.

A dip is over in a round or two. Where the best depths of two batch sizes are nearly as good, each dip would cost two
switches, which is more than the better depth brings meanwhile.
"""

from __future__ import annotations

BRIEF_ROUNDS = 4
"""Rounds that a batch size near the former one has to last until it counts."""
NEARBY = 2.0
"""Batch sizes further apart than this factor are another load: they count at once."""


class StandingBatch:
    """Follows the batch size, by the anchor that stands for it in the table of round times."""

    __slots__ = ("_anchor", "_away", "rounds")

    def __init__(self) -> None:
        self._anchor = 0
        self._away = 0
        self.rounds = 0
        """Rounds that the load has stood at its batch size, dips included."""

    @property
    def dips(self) -> bool:
        """Whether the latest round's batch size may yet be a dip."""
        return self._away > 0

    def follow(self, anchor: int) -> None:
        """Take in the *anchor* of the next round."""
        self.rounds += 1
        near = max(anchor, self._anchor) <= NEARBY * min(anchor, self._anchor)
        self._away = self._away + 1 if near and anchor != self._anchor else 0
        if 0 < self._away < BRIEF_ROUNDS:
            return
        if anchor != self._anchor:
            self.rounds = 1
        self._anchor, self._away = anchor, 0
