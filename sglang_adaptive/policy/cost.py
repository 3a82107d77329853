"""T(batch, steps): seconds of one round, and how sure that is.

Best source first: this server's own rounds (``readings``), a saved profile, the parametric form. What the server
measures is kept as log-ratios to a base table and carried to cells that it has not measured:

    ln T(n, s) = ln base(n, s) + common + sum_c k_c * (e_c - common) / (1 + sum_c k_c)
    k_c = w_c * exp(-|log2(n / n_c)| / OCTAVES - |i - i_c| / RUNGS)

over the measured cells ``c`` with ratio ``e_c`` (``i``: index in the ladder; ``w_c`` grows to 1 with readings;
``common`` is their shrunk mean), made non-decreasing in steps and in batch. How far measured cells lie from the base
says how far the unmeasured ones may: that is their standard deviation.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from sglang_adaptive.policy.cost_base import BaseCost, interpolate
from sglang_adaptive.policy.cost_form import CostForm, fit
from sglang_adaptive.policy.cost_smooth import monotone
from sglang_adaptive.policy.profile import CostProfile

OCTAVES, RUNGS = 1.0, 2.0
REACH_OCTAVES = 2.0
"""Measured cells further away than this (log2 of the batch ratio) say nothing about a cell."""
PROFILE_DEVIATION, FORM_DEVIATION = 0.02, 0.15
BELIEF_CELLS = 2.0
"""The two figures above count as much as so many measured cells."""
READING_DEVIATION, LONE_DEVIATION, CELL_DEVIATION = 0.025, 0.2, 0.005
"""Relative: one reading of several, a single one (an outlier would go unseen), the cell itself."""
DRIFT_SHARE = 0.75
"""Part of a drift seen elsewhere that a cell is taken to share until it is timed again."""
CACHED_ROWS = 512
MEASURED, PROFILE, INTERPOLATED, PRIOR = "measured", "profile", "interpolated", "prior"


@dataclass(frozen=True, slots=True)
class CostRow:
    """Round times at one batch size, by ladder index."""

    seconds: tuple[float, ...]
    deviation: tuple[float, ...]
    """Relative standard deviation."""
    by_steps: tuple[tuple[int, float], ...]
    """(steps, seconds), ascending."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A measured cell: log-ratio to the base, weight and relative standard deviation."""

    anchor: int
    rung: int
    ratio: float
    weight: float
    deviation: float


class CostModel:
    """The table that decisions are made on; it changes in :meth:`load` only."""

    def __init__(self, ladder: Sequence[int], profile: CostProfile | None) -> None:
        self.base = BaseCost(ladder, profile)
        self.ladder = tuple(ladder)
        self._has_profile = bool(self.base.profiled)
        self._doubt = PROFILE_DEVIATION if self._has_profile else FORM_DEVIATION
        self._form: CostForm = self.base.form
        self._offset = 0.0
        self._common = 0.0
        self._known: dict[tuple[int, int], _Known] = {}
        self._spread = self._doubt
        self._anchor_rows: dict[int, tuple[list[float], list[float]]] = {}
        self._rows: dict[int, CostRow] = {}
        self._bins: dict[int, tuple[int, tuple[float, ...]]] = {}

    def row(self, batch_size: int) -> CostRow:
        """Return round times at *batch_size* >= 1."""
        found = self._rows.get(batch_size)
        if found is None:
            if len(self._rows) >= CACHED_ROWS:
                self._rows.clear()
            found = self._rows[batch_size] = self._build(batch_size)
        return found

    def bin(self, batch_size: int) -> tuple[int, tuple[float, ...]]:
        """Return the anchor that stands for *batch_size*, and the log of the base table there by ladder index."""
        found = self._bins.get(batch_size)
        if found is None:
            if len(self._bins) >= CACHED_ROWS:
                self._bins.clear()
            anchors = self.base.anchors
            nearest = min(anchors, key=lambda anchor: abs(math.log(anchor / batch_size)))
            rows = dict(zip(anchors, self.base.seconds, strict=True))
            base = interpolate(batch_size, anchors, rows, self.base.form, self.ladder)
            found = self._bins[batch_size] = (nearest, tuple(math.log(seconds) for seconds in base))
        return found

    def log_base(self, anchor: int, steps: int) -> float:
        """Return the log of the base table's seconds, which readings are ratios to."""
        return math.log(self.base.seconds[bisect_left(self.base.anchors, anchor)][self.ladder.index(steps)])

    def load(self, drift: float, cells: Sequence[Sequence[float]]) -> bool:
        """Replace what was measured; return whether any time changed by it.

        *drift* is the common log-drift now; a cell is (anchor batch size, steps, log-ratio to the base with the
        drift of its time included, readings behind it, drift at its time).
        """
        rungs = {steps: rung for rung, steps in enumerate(self.ladder)}
        known: dict[tuple[int, int], _Known] = {}
        for batch, steps, ratio, readings, drift_then in cells:
            moved = drift - drift_then
            reading = READING_DEVIATION if readings > 1 else LONE_DEVIATION
            deviation = math.hypot(
                reading / math.sqrt(readings), CELL_DEVIATION, (1.0 - DRIFT_SHARE) * 2.0 * moved
            )
            anchor, rung = int(batch), rungs[int(steps)]
            weight = readings / (readings + 1.0) if readings > 1 else 0.1
            known[anchor, rung] = _Known(anchor, rung, ratio + DRIFT_SHARE * moved, weight, deviation)
        if not self._differs(known):
            return False
        self._known = known
        self._relate(DRIFT_SHARE * drift)
        self._anchor_rows.clear()
        self._rows.clear()
        return True

    def source(self, batch_size: int, rung: int) -> str:
        """Return where the time at this batch size and ladder index comes from."""
        anchor, _ = self.bin(batch_size)
        if (anchor, rung) in self._known:
            return MEASURED
        if (batch_size, self.ladder[rung]) in self.base.profiled:
            return PROFILE
        return INTERPOLATED if self._known or self._has_profile else PRIOR

    def _differs(self, known: dict[tuple[int, int], _Known]) -> bool:
        if known.keys() != self._known.keys():
            return True
        return any(
            abs(cell.ratio - self._known[where].ratio) > 0.002
            or abs(cell.deviation - self._known[where].deviation) > 0.002
            for where, cell in known.items()
        )

    def _relate(self, offset: float) -> None:
        """Find what the measured cells share, and how far they lie from the base otherwise."""
        if not self._has_profile:
            at = {anchor: row for anchor, row in zip(self.base.anchors, self.base.seconds, strict=True)}
            cells = list(self._known.values())
            self._form = fit(
                [(c.anchor, self.ladder[c.rung], at[c.anchor][c.rung] * math.exp(c.ratio)) for c in cells]
            )
        self._offset = offset
        errors = [(c.weight, self._error(c)) for c in self._known.values()]
        mass = sum(weight for weight, _ in errors)
        self._common = sum(weight * error for weight, error in errors) / (mass + 1.0)
        squares = sum(weight * (error - self._common) ** 2 for weight, error in errors)
        self._spread = math.sqrt((BELIEF_CELLS * self._doubt**2 + squares) / (BELIEF_CELLS + mass))

    def _anchor_base(self, anchor: int) -> list[float]:
        """Return the log of the base by ladder index: the profile's, or the form as refitted."""
        if not self._has_profile:
            return [math.log(self._form.seconds(anchor, steps)) for steps in self.ladder]
        row = self.base.seconds[bisect_left(self.base.anchors, anchor)]
        return [math.log(seconds) + self._offset for seconds in row]

    def _error(self, cell: _Known) -> float:
        row = self.base.seconds[bisect_left(self.base.anchors, cell.anchor)]
        return math.log(row[cell.rung]) + cell.ratio - self._anchor_base(cell.anchor)[cell.rung]

    def _anchor_row(self, anchor: int) -> tuple[list[float], list[float]]:
        """Return log seconds and deviations by ladder index at an anchor."""
        found = self._anchor_rows.get(anchor)
        if found is None:
            base = self._anchor_base(anchor)
            near = [
                (c.rung, c.weight * math.exp(-octaves / OCTAVES), self._error(c) - self._common)
                for c in self._known.values()
                if (octaves := abs(math.log2(anchor / c.anchor))) <= REACH_OCTAVES
            ]
            cells = [self._cell(anchor, rung, base[rung], near) for rung in range(len(self.ladder))]
            logs = monotone([log for log, _ in cells], [1.0 / deviation**2 for _, deviation in cells])
            found = self._anchor_rows[anchor] = (logs, [deviation for _, deviation in cells])
        return found

    def _cell(
        self, anchor: int, rung: int, base: float, near: Sequence[tuple[int, float, float]]
    ) -> tuple[float, float]:
        mass = pull = 0.0
        for other, weight, error in near:
            weight *= _FADE[abs(rung - other)]
            mass += weight
            pull += weight * error
        guess = self._common + pull / (1.0 + mass)
        doubt = self._spread / math.sqrt(1.0 + mass)
        own = self._known.get((anchor, rung))
        if own is None:
            return base + guess, doubt
        # What the cell itself says, and what its neighbours do, by their precision.
        part = doubt**2 / (doubt**2 + own.deviation**2)
        return base + guess + part * (self._error(own) - guess), own.deviation * math.sqrt(part)

    def _build(self, batch_size: int) -> CostRow:
        anchors = self.base.anchors
        at = bisect_left(anchors, batch_size)
        if at < len(anchors) and anchors[at] == batch_size:
            logs, deviations = self._anchor_row(batch_size)
            seconds = [math.exp(log) for log in logs]
        elif at == len(anchors):
            logs, deviations = self._anchor_row(anchors[-1])
            rows = {anchors[-1]: [math.exp(log) for log in logs]}
            seconds = interpolate(batch_size, anchors[-1:], rows, self._form, self.ladder)
        else:
            low, high = anchors[at - 1], anchors[at]
            seconds, deviations = self._between(batch_size, low, high)
        return CostRow(tuple(seconds), tuple(deviations), tuple(zip(self.ladder, seconds, strict=True)))

    def _between(self, batch_size: int, low: int, high: int) -> tuple[list[float], list[float]]:
        below, above = self._anchor_row(low), self._anchor_row(high)
        part = (batch_size - low) / (high - low)
        seconds = []
        for log_low, log_high, sd_low, sd_high in zip(below[0], above[0], below[1], above[1], strict=True):
            first, second = monotone((log_low, log_high), (1.0 / sd_low**2, 1.0 / sd_high**2))
            seconds.append((1.0 - part) * math.exp(first) + part * math.exp(second))
        return seconds, [max(pair) for pair in zip(below[1], above[1], strict=True)]


_FADE = tuple(math.exp(-distance / RUNGS) for distance in range(64))
