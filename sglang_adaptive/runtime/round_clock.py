"""Wall time of decode rounds, from the moments at which their results arrive."""

from __future__ import annotations

import time
from collections.abc import Callable


class RoundClock:
    """Turns result arrival times into round times, in seconds.

    In steady decoding, with overlap or without, one result arrives a round, so the gap between two arrivals is
    the time of the later round. That only holds between like rounds: the first round after a prefill, an idle
    spell, a change of depth or of batch size also pays for something else, and reads as None. So does the round
    whose result waits, with overlap, until a prefill is launched.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self._last_arrival: float | None = None
        self._last_shape: tuple[int, int] | None = None

    def interrupt(self) -> None:
        """Say that something other than a decode round ran since the last arrival."""
        self._last_shape = None

    def read(self, steps: int, batch_size: int) -> float | None:
        """Return the seconds of the round whose result arrives now, or None when it cannot be compared."""
        now, shape = self.now(), (steps, batch_size)
        seconds: float | None = None
        if shape == self._last_shape and self._last_arrival is not None:
            seconds = now - self._last_arrival
            if seconds <= 0.0:  # a clock that is too coarse, or that was set back
                seconds = None
        self._last_arrival, self._last_shape = now, shape
        return seconds
