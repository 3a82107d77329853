"""Recent round times by batch size and depth, whatever the policy: what calibration and monitoring read."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.readings import ZERO_CYCLE

KEPT_PER_CELL = 31
MAX_CELLS = 512


@dataclass(slots=True)
class _Cell:
    rounds: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_PER_CELL))
    cycle: list[float] = field(default_factory=list)
    """Zero-step rounds that make no ZERO_CYCLE yet."""


class RoundTimes:
    """Keeps the latest comparable round times of each (batch size, depth) in bounded memory.

    Of zero steps it keeps the means of ZERO_CYCLE rounds: one of so many runs the draft's extend for all of them, and a
    median of single rounds would leave it out.
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
        cell.cycle.append(observation.seconds)
        if observation.steps or len(cell.cycle) == ZERO_CYCLE:
            cell.recent.append(fmean(cell.cycle))
            cell.cycle.clear()

    def as_list(self) -> list[dict[str, Any]]:
        """Return each cell's median over what was kept of it, in seconds, with its rounds so far."""
        return [
            {"batch_size": batch_size, "steps": steps, "seconds": median(cell.recent), "rounds": cell.rounds}
            for (batch_size, steps), cell in sorted(self._cells.items())
            if cell.recent
        ]
