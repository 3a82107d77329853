"""Recent round times by batch size and steps, with any policy, for calibration and monitoring."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from sglang_adaptive.policy.observation import RoundObservation, ZeroCycle

KEPT_PER_CELL = 31
MAX_CELLS = 512


@dataclass(slots=True)
class _Cell:
    rounds: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_PER_CELL))


class RoundTimes:
    """Keeps the latest round times of each batch size, steps and budget in bounded memory.

    Of zero steps it keeps the means of whole cycles, and counts their rounds; see ``ZeroCycle``.
    """

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int, int], _Cell] = {}
        """By batch size, steps, and drafts verified of a request."""
        self._cycle = ZeroCycle()
        self._zero_batch_size = 0

    def add(self, observation: RoundObservation) -> None:
        """Add the round's time if it has one; past MAX_CELLS the oldest cell is removed."""
        timed = self._at_zero(observation) if not observation.steps else (observation.seconds, 1)
        if observation.steps:
            self._cycle.begin()
        if timed is None or timed[0] is None:
            return
        place = (observation.batch_size, observation.steps, observation.shape[1])
        cell = self._cells.get(place)
        if cell is None:
            if len(self._cells) >= MAX_CELLS:
                del self._cells[next(iter(self._cells))]
            cell = self._cells[place] = _Cell()
        cell.rounds += timed[1]
        cell.recent.append(timed[0])

    def _at_zero(self, observation: RoundObservation) -> tuple[float, int] | None:
        """Return the mean round time of the zero-step cycle that the round ends, in seconds, and its timed rounds."""
        if observation.batch_size != self._zero_batch_size:
            self._zero_batch_size = observation.batch_size
            self._cycle.restart()
        return self._cycle.add(observation.seconds, observation.extended)

    def as_list(self) -> list[dict[str, Any]]:
        """Return the median of each cell's kept times, in seconds, and its rounds so far."""
        return [
            {
                **{"batch_size": batch_size, "steps": steps, "seconds": median(cell.recent), "rounds": cell.rounds},
                **({"budget": budget} if budget < steps else {}),
            }
            for (batch_size, steps, budget), cell in sorted(self._cells.items())
            if cell.recent
        ]
