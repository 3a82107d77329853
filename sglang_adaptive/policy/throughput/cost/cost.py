"""T(batch, steps): seconds of one round, where each figure comes from, and how sure it is.

Best source first: this server's own rounds (``readings``, carried to other cells by ``cost_learnt``), a saved profile
and the parametric form (``cost_base``). Between anchor batch sizes times are linear in the batch.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sglang_adaptive.policy.profile.profile import CostProfile
from sglang_adaptive.policy.throughput.cost.cost_base import BaseCost, interpolate
from sglang_adaptive.policy.throughput.cost.cost_learnt import LearntCost
from sglang_adaptive.policy.throughput.cost.cost_smooth import monotone

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


class CostModel:
    """The table that decisions are made on; it changes in :meth:`load` only."""

    def __init__(self, ladder: Sequence[int], profile: CostProfile | None) -> None:
        self.base = BaseCost(ladder, profile)
        self.ladder = tuple(ladder)
        self._learnt = LearntCost(self.base)
        self._rows: dict[int, CostRow] = {}
        self._bins: dict[int, tuple[int, tuple[float, ...]]] = {}

    def row(self, batch_size: int) -> CostRow:
        """Return round times at *batch_size* >= 1."""
        found = self._rows.get(batch_size)
        if found is None:
            if len(self._rows) >= CACHED_ROWS:
                self._rows.clear()
            seconds, deviation = self._build(batch_size)
            by_steps = tuple(zip(self.ladder, seconds, strict=True))
            found = self._rows[batch_size] = CostRow(tuple(seconds), tuple(deviation), by_steps)
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
        return math.log(self.base.seconds_at(anchor)[self.ladder.index(steps)])

    def load(self, drift: float, cells: Sequence[Sequence[float]]) -> bool:
        """Replace what was measured, as ``LearntCost.load``; return whether any time changed by it."""
        changed = self._learnt.load(drift, cells)
        if changed:
            self._rows.clear()
        return changed

    def measured(self) -> Iterable[tuple[int, int]]:
        """Return (anchor batch size, ladder index) of every cell that this server measured."""
        return self._learnt.cells

    def source(self, batch_size: int, rung: int) -> str:
        """Return where the time at this batch size and ladder index comes from."""
        anchor, _ = self.bin(batch_size)
        if self._learnt.knows(anchor, rung):
            return MEASURED
        if (batch_size, self.ladder[rung]) in self.base.profiled:
            return PROFILE
        return INTERPOLATED if self._learnt.any or self.base.profiled else PRIOR

    def _build(self, batch_size: int) -> tuple[Sequence[float], Sequence[float]]:
        """Return seconds and deviations by ladder index."""
        anchors = self.base.anchors
        at = bisect_left(anchors, batch_size)
        if at == len(anchors):
            logs, deviations = self._learnt.row(anchors[-1])
            rows = {anchors[-1]: [math.exp(log) for log in logs]}
            return interpolate(batch_size, anchors[-1:], rows, self._learnt.form, self.ladder), deviations
        if anchors[at] == batch_size:
            logs, deviations = self._learnt.row(batch_size)
            return [math.exp(log) for log in logs], deviations
        return self._between(batch_size, anchors[at - 1], anchors[at])

    def _between(self, batch_size: int, low: int, high: int) -> tuple[Sequence[float], Sequence[float]]:
        below, above = self._learnt.row(low), self._learnt.row(high)
        part = (batch_size - low) / (high - low)
        seconds = []
        for log_low, log_high, sd_low, sd_high in zip(below[0], above[0], below[1], above[1], strict=True):
            # A bigger batch never takes less time; what is surer gives way less.
            first, second = monotone((log_low, log_high), (1.0 / sd_low**2, 1.0 / sd_high**2))
            seconds.append((1.0 - part) * math.exp(first) + part * math.exp(second))
        return seconds, [max(pair) for pair in zip(below[1], above[1], strict=True)]
