"""Zero-step rounds are timed by the cycle: the rounds up to one that runs the draft's extend, which takes longer.

How many they are changes from cycle to cycle: with ``zero_step_extend_every``, with the batch, and with how much the
policy wants to see of the draft. So a cycle ends where the extend ran (``RoundObservation.extended``), and its mean is
what a round takes.
"""

from __future__ import annotations


class ZeroCycle:
    """Gathers the seconds of zero-step rounds until an extend ends their cycle."""

    __slots__ = ("_rounds", "_seconds", "_whole")

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._rounds = 0
        """Rounds of the cycle under way, also those that could not be timed."""
        self._whole = False
        """Whether its beginning was seen."""

    def add(self, seconds: float | None, extended: bool) -> tuple[float, int] | None:
        """Take in a round of *seconds*, None if it could not be timed; *extended* says whether it ran the extend.

        Return the mean of the cycle that it completes, in seconds a round, and how many of its rounds were timed; None
        if it completes none, or one of which less than half is known. Rounds not timed count as the median of the
        others.
        """
        self._rounds += 1
        if seconds is not None:
            self._seconds.append(seconds)
        if not extended:
            return None
        timed, rounds, whole = self._seconds, self._rounds, self._whole
        self.begin()
        if not whole or seconds is None or 2 * len(timed) < rounds:
            return None
        usual = sorted(timed)[(len(timed) - 1) // 2]
        return (sum(timed) + (rounds - len(timed)) * usual) / rounds, len(timed)

    def begin(self) -> None:
        """Begin a cycle: the draft owes nothing, for it has just run."""
        self._seconds, self._rounds, self._whole = [], 0, True

    def restart(self) -> None:
        """Take the rounds of the cycle under way as not timed: they were of another batch size."""
        self._seconds = []
