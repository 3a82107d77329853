"""Recent round times by batch size and steps, and the clock that measures them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from sglang_adaptive.policy.observation import RoundObservation, ZeroCycle


class RoundClock:
    """Turns result arrival times into round times, in seconds.

    In steady decoding, with or without overlap, one result arrives per round, so the time between two arrivals is that
    of the later round. This holds only between similar rounds. The first round after a prefill, an idle period or a
    change of batch size includes other work and is not timed (None), nor is the first at zero steps, or after them,
    where the draft catches up. With overlap, a round whose result waits for the launch of a prefill is left out as
    well. A switch between other steps adds nothing (28 switches on an H200: -0.1% in the median, quartiles 1%), so the
    round after it is timed.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self.since_last: float | None = None
        """Seconds between the latest two results, whether or not they time a round; None before the second."""
        self._last_arrival: float | None = None
        self._last_round: tuple[int, int] | None = None
        """Steps and batch size."""

    def interrupt(self) -> None:
        """Note that something other than a decode round ran since the last arrival."""
        self._last_round = None

    def read(self, steps: int, batch_size: int, looked_up: bool = False) -> float | None:
        """Return the seconds of the round whose result arrives now; None when it cannot be timed."""
        now, this, last = self.now(), (steps, batch_size), self._last_round
        alike = this == last or (last is not None and last[-1] == batch_size and (looked_up or min(steps, last[0]) > 0))
        self.since_last = None if self._last_arrival is None else now - self._last_arrival
        self._last_arrival, self._last_round = now, this
        # 0 or less: the clock is too coarse, or was set back.
        return self.since_last if alike and self.since_last is not None and self.since_last > 0.0 else None


KEPT_PER_CELL = 31
MAX_CELLS = 512


@dataclass(slots=True)
class _Cell:
    rounds: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_PER_CELL))


class RoundTimes:
    """Keeps the latest round times of each batch size and number of steps, for calibration and monitoring.

    For zero steps it keeps the means of whole cycles and counts their rounds; see ``ZeroCycle``.
    """

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], _Cell] = {}
        """By batch size and steps."""
        self._cycle = ZeroCycle()
        self._zero_batch_size = 0

    def add(self, observation: RoundObservation) -> None:
        """Add the round's time if it has one; past MAX_CELLS the oldest cell is removed."""
        if observation.steps:
            self._cycle.begin()
            timed = None if observation.seconds is None else (observation.seconds, 1)
        else:
            if observation.batch_size != self._zero_batch_size:
                self._zero_batch_size = observation.batch_size
                self._cycle.restart()
            timed = self._cycle.add(observation.seconds, observation.extended)
        if timed is None:
            return
        seconds, rounds = timed
        place = (observation.batch_size, observation.steps)
        cell = self._cells.get(place)
        if cell is None:
            if len(self._cells) >= MAX_CELLS:
                del self._cells[next(iter(self._cells))]
            cell = self._cells[place] = _Cell()
        cell.rounds += rounds
        cell.recent.append(seconds)

    def as_list(self) -> list[dict[str, Any]]:
        """Return the median of each cell's kept times, in seconds, and its rounds so far."""
        return [
            {"batch_size": batch_size, "steps": steps, "seconds": median(cell.recent), "rounds": cell.rounds}
            for (batch_size, steps), cell in sorted(self._cells.items())
            if cell.recent
        ]
