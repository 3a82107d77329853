"""What this server measured, carried from the cells that it timed to those that it did not.

Measurements are log-ratios to a base table. With ``e_c`` the ratio of a measured cell ``c``, drift taken out, ``w_c``
its weight (near 1 after a few readings) and ``i`` the index in the ladder,

    ln T(n, s) = ln base(n, s) + common + sum_c k_c * (e_c - common) / (P + sum_c k_c)
    k_c = w_c * exp(-|log2(n / n_c)| / OCTAVES - |i - i_c| / RUNGS)

``common`` is the shrunk mean of all ``e_c``. A cell that was timed itself is averaged with this guess by precision,
and times are made non-decreasing in steps. How far measured cells lie from the base, against how far they were
expected to, scales the doubt about all others.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sglang_adaptive.policy.throughput.cost.cost_base import BaseCost
from sglang_adaptive.policy.throughput.cost.cost_form import fit
from sglang_adaptive.policy.throughput.cost.cost_smooth import monotone

OCTAVES, RUNGS = 1.0, 2.0
REACH_OCTAVES = 2.0
"""Measured cells further away than this (log2 of the batch ratio) say nothing about a cell."""
NEIGHBOUR_PRIOR = 2.0
"""P: neighbours' weight at which a cell follows them half way."""
BELIEF_CELLS = 2.0
"""The base table's own doubt counts as much as so many measured cells."""
COMMON_CELLS = 4.0
"""``common`` is drawn to 0 by so many: what looks common to a few cells may be errors of each."""
READING_DEVIATION, LONE_DEVIATION, CELL_DEVIATION = 0.025, 0.2, 0.005
"""Relative: one reading of several, a lone one, the cell itself."""
FEW = 3
"""Fewer readings than this are as good as one: the lower of two may be an outlier, and nobody sees it."""
DRIFT_SHARE = 0.75
"""Part of a drift seen elsewhere that a cell is taken to share until it is timed again."""
NOTICED = 0.002
"""Changes of a cell smaller than this (log) are not worth a new table."""
_FADE = tuple(math.exp(-distance / RUNGS) for distance in range(64))


@dataclass(frozen=True, slots=True)
class _Known:
    """A measured cell: log-ratio to the base, weight and relative standard deviation."""

    anchor: int
    rung: int
    ratio: float
    weight: float
    deviation: float


class LearntCost:
    """Log seconds and deviations at the base's anchors; they change in :meth:`load` only."""

    def __init__(self, base: BaseCost) -> None:
        self.form = base.form
        """The parametric form; without a profile it follows what was measured."""
        self._base = base
        self._has_profile = bool(base.profiled)
        self._offset = self._common = 0.0
        self._scale = 1.0
        self._known: dict[tuple[int, int], _Known] = {}
        self._rows: dict[int, tuple[list[float], list[float]]] = {}

    @property
    def any(self) -> bool:
        """Whether anything was measured."""
        return bool(self._known)

    @property
    def cells(self) -> Collection[tuple[int, int]]:
        """(Anchor batch size, ladder index) of every measured cell."""
        return self._known.keys()

    def knows(self, anchor: int, rung: int) -> bool:
        """Whether this cell was measured."""
        return (anchor, rung) in self._known

    def load(self, drift: float, cells: Sequence[Sequence[float]]) -> bool:
        """Replace what was measured; return whether any time changed by it.

        *drift* is the common log-drift now; a cell is (anchor batch size, steps, log-ratio to the base with the
        drift of its time included, readings behind it, drift at its time).
        """
        rungs = {steps: rung for rung, steps in enumerate(self._base.ladder)}
        known: dict[tuple[int, int], _Known] = {}
        for batch, steps, ratio, readings, drift_then in cells:
            cell = _known(int(batch), rungs[int(steps)], ratio, readings, drift - drift_then)
            known[cell.anchor, cell.rung] = cell
        if not self._differs(known):
            return False
        self._known = known
        self._relate(DRIFT_SHARE * drift)
        self._rows.clear()
        return True

    def row(self, anchor: int) -> tuple[list[float], list[float]]:
        """Return log seconds and relative standard deviations by ladder index."""
        found = self._rows.get(anchor)
        if found is None:
            base, doubts = self._logs(anchor), self._base.doubts_at(anchor)
            near = [
                (c.rung, c.weight * math.exp(-octaves / OCTAVES), self._error(c) - self._common)
                for c in self._known.values()
                if (octaves := abs(math.log2(anchor / c.anchor))) <= REACH_OCTAVES
            ]
            cells = [self._cell((anchor, rung), base[rung], doubts[rung], near) for rung in range(len(base))]
            logs = monotone([log for log, _ in cells], [1.0 / deviation**2 for _, deviation in cells])
            found = self._rows[anchor] = (logs, [deviation for _, deviation in cells])
        return found

    def _cell(
        self, where: tuple[int, int], base: float, doubt: float, near: Sequence[tuple[int, float, float]]
    ) -> tuple[float, float]:
        """Return log seconds and deviation of one cell from the measured ones *near* it."""
        mass = pull = 0.0
        for rung, weight, error in near:
            weight *= _FADE[abs(where[1] - rung)]
            mass += weight
            pull += weight * error
        guess = self._common + pull / (NEIGHBOUR_PRIOR + mass)
        doubt *= self._scale * math.sqrt(NEIGHBOUR_PRIOR / (NEIGHBOUR_PRIOR + mass))
        own = self._known.get(where)
        if own is None:
            return base + guess, doubt
        part = doubt**2 / (doubt**2 + own.deviation**2)
        return base + guess + part * (self._error(own) - guess), own.deviation * math.sqrt(part)

    def _differs(self, known: dict[tuple[int, int], _Known]) -> bool:
        if known.keys() != self._known.keys():
            return True
        return any(
            abs(cell.ratio - self._known[where].ratio) > NOTICED
            or abs(cell.deviation - self._known[where].deviation) > NOTICED
            for where, cell in known.items()
        )

    def _relate(self, offset: float) -> None:
        """Find what the measured cells share, and how far they lie from the base, against its own doubt."""
        cells = list(self._known.values())
        if not self._has_profile:
            ladder, sure = self._base.ladder, [c for c in cells if c.weight] or cells
            self.form = fit([(c.anchor, ladder[c.rung], math.exp(self._measured(c))) for c in sure])
        self._offset = offset
        mass = sum(c.weight for c in cells)
        self._common = sum(c.weight * self._error(c) for c in cells) / (mass + COMMON_CELLS)
        # Around 0, not around what they share: a base that is off as a whole is a base to doubt.
        squares = sum(c.weight * (self._error(c) / self._base.doubts_at(c.anchor)[c.rung]) ** 2 for c in cells)
        self._scale = math.sqrt((BELIEF_CELLS + squares) / (BELIEF_CELLS + mass))

    def _logs(self, anchor: int) -> list[float]:
        """Return the log of the base by ladder index: the profile's with the drift, or the form as refitted."""
        if not self._has_profile:
            return [math.log(self.form.seconds(anchor, steps)) for steps in self._base.ladder]
        return [math.log(seconds) + self._offset for seconds in self._base.seconds_at(anchor)]

    def _measured(self, cell: _Known) -> float:
        return math.log(self._base.seconds_at(cell.anchor)[cell.rung]) + cell.ratio

    def _error(self, cell: _Known) -> float:
        return self._measured(cell) - self._logs(cell.anchor)[cell.rung]


def _known(anchor: int, rung: int, ratio: float, readings: float, moved: float) -> _Known:
    """Return the cell with the part of the drift since its last reading that it is taken to share."""
    lone = readings < FEW
    reading = LONE_DEVIATION if lone else READING_DEVIATION / math.sqrt(readings)
    deviation = math.hypot(reading, CELL_DEVIATION, 2.0 * (1.0 - DRIFT_SHARE) * moved)
    # A lone reading may be an outlier, so it says nothing about other cells, nor about the base as a whole.
    weight = 0.0 if lone else readings / (readings + 1.0)
    return _Known(anchor, rung, ratio + DRIFT_SHARE * moved, weight, deviation)
