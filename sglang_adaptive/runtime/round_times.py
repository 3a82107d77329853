"""Recent round times by batch size and depth, whatever the policy: what calibration and monitoring read."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.zero_cycle import ZeroCycle

KEPT_PER_CELL = 31
MAX_CELLS = 512


@dataclass(slots=True)
class _Cell:
    rounds: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_PER_CELL))
    cycle: ZeroCycle = field(default_factory=ZeroCycle)


class RoundTimes:
    """Keeps the latest comparable round times of each (batch size, depth) in bounded memory.

    Of zero steps it keeps the means of whole cycles; see ``zero_cycle``.
    """

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], _Cell] = {}

    def add(self, observation: RoundObservation) -> None:
        """Take the round's time if it has one; past MAX_CELLS the cell seen first makes room."""
        if observation.seconds is None:
            return
        place = (observation.batch_size, observation.steps)
        cell = self._cells.get(place)
        if cell is None:
            if len(self._cells) >= MAX_CELLS:
                del self._cells[next(iter(self._cells))]
            cell = self._cells[place] = _Cell()
        cell.rounds += 1
        seconds = observation.seconds if observation.steps else cell.cycle.add(observation.seconds)
        if seconds is not None:
            cell.recent.append(seconds)

    def as_list(self) -> list[dict[str, Any]]:
        """Return each cell's median over what was kept of it, in seconds, with its rounds so far."""
        return [
            {"batch_size": batch_size, "steps": steps, "seconds": median(cell.recent), "rounds": cell.rounds}
            for (batch_size, steps), cell in sorted(self._cells.items())
            if cell.recent
        ]
