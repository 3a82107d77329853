"""Measures round times from the arrival times of results."""

from __future__ import annotations

import time
from collections.abc import Callable


class RoundClock:
    """Turns result arrival times into round times, in seconds.

    In steady decoding, with overlap or without, one result arrives a round, so the time between two arrivals is that
    of the later round. This holds only between like rounds. The first round after a prefill, an idle period, a switch
    or a change of batch size or budget includes other work, and is not timed (None). Nor is, with overlap, the round
    whose result waits until a prefill is launched. A round of lookups is timed after any round of the same batch: it is
    often alone among others, and the switch is part of its price.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self._last_arrival: float | None = None
        self._last_shape: tuple[int, int | None, int] | None = None

    def interrupt(self) -> None:
        """Note that something other than a decode round ran since the last arrival."""
        self._last_shape = None

    def read(self, steps: int, batch_size: int, budget: int | None = None, looked_up: bool = False) -> float | None:
        """Return the seconds of the round whose result arrives now; None when it cannot be timed."""
        now, shape, last = self.now(), (steps, budget, batch_size), self._last_shape
        seconds: float | None = None
        alike = shape == last or (looked_up and last is not None and last[-1] == batch_size)
        if alike and self._last_arrival is not None:
            seconds = now - self._last_arrival
            if seconds <= 0.0:  # the clock is too coarse, or was set back
                seconds = None
        self._last_arrival, self._last_shape = now, shape
        return seconds
