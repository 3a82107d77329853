"""Round times before this server has measured any: a profile's cells, filled out with the parametric form."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from sglang_adaptive.policy.profile.profile import CostProfile
from sglang_adaptive.policy.throughput.cost.cost_form import CostForm, fit

ANCHORS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Batch sizes at which times are kept; others are interpolated."""
MAX_ANCHORS = 64
PROFILED_DOUBT, BETWEEN_DOUBT, BEYOND_DOUBT, FORM_DOUBT = 0.02, 0.04, 0.1, 0.15
"""Relative standard deviation of a cell: as profiled, between profiled cells, beyond them, and without a profile."""


class BaseCost:
    """A full table over anchor batch sizes and the ladder's depths, in seconds."""

    def __init__(self, ladder: Sequence[int], profile: CostProfile | None) -> None:
        cells = [] if profile is None else [(c.batch_size, c.steps, c.seconds) for c in profile.cells]
        self.ladder = tuple(ladder)
        self.form = fit(cells)
        self.anchors = _anchors(sorted({batch for batch, _, _ in cells}))
        self.profiled = frozenset((batch, steps) for batch, steps, _ in cells)
        """Batch sizes and depths that come from the profile as they are."""
        by_batch: dict[int, dict[int, float]] = {}
        for batch, steps, seconds in cells:
            by_batch.setdefault(batch, {})[steps] = seconds
        rows = {batch: [self._in_row(batch, row, steps) for steps in ladder] for batch, row in by_batch.items()}
        doubts = {batch: [_doubt(row, steps) for steps in ladder] for batch, row in by_batch.items()}
        self.seconds = [interpolate(anchor, sorted(rows), rows, self.form, self.ladder) for anchor in self.anchors]
        self.doubt = [_row_doubt(anchor, sorted(doubts), doubts, len(self.ladder)) for anchor in self.anchors]
        """By anchor and ladder index, as ``seconds``."""

    def seconds_at(self, anchor: int) -> list[float]:
        """Return seconds by ladder index at one of the anchors."""
        return self.seconds[bisect_left(self.anchors, anchor)]

    def doubts_at(self, anchor: int) -> list[float]:
        """Return relative standard deviations by ladder index at one of the anchors."""
        return self.doubt[bisect_left(self.anchors, anchor)]

    def _in_row(self, batch: int, row: Mapping[int, float], steps: int) -> float:
        """Return the time at *steps* from the known depths of the same batch size."""
        known = sorted(row)
        at = bisect_left(known, steps)
        if at < len(known) and known[at] == steps:
            return row[steps]
        if 0 < at < len(known):
            low, high = known[at - 1], known[at]
            return row[low] + (row[high] - row[low]) * (steps - low) / (high - low)
        edge = known[0] if at == 0 else known[-1]
        return row[edge] * self.form.seconds(batch, steps) / self.form.seconds(batch, edge)


def interpolate(
    batch: int,
    known: Sequence[int],
    rows: Mapping[int, Sequence[float]],
    form: CostForm,
    ladder: Sequence[int],
) -> list[float]:
    """Return seconds by ladder depth at *batch*: linear between *known* batches, after the form outside them."""
    if not known:
        return [form.seconds(batch, steps) for steps in ladder]
    at = bisect_left(known, batch)
    if at < len(known) and known[at] == batch:
        return list(rows[batch])
    if 0 < at < len(known):
        low, high = known[at - 1], known[at]
        part = (batch - low) / (high - low)
        return [a + (b - a) * part for a, b in zip(rows[low], rows[high], strict=True)]
    edge = known[0] if at == 0 else known[-1]
    return [
        seconds * form.seconds(batch, steps) / form.seconds(edge, steps)
        for seconds, steps in zip(rows[edge], ladder, strict=True)
    ]


def _doubt(row: Mapping[int, float], steps: int) -> float:
    if steps in row:
        return PROFILED_DOUBT
    return BETWEEN_DOUBT if min(row) < steps < max(row) else BEYOND_DOUBT


def _row_doubt(batch: int, known: Sequence[int], doubts: Mapping[int, list[float]], width: int) -> list[float]:
    """Return the doubt at *batch*: of the two profiled batches around it, or more than that of the one beside it."""
    if not known:
        return [FORM_DOUBT] * width
    at = bisect_left(known, batch)
    if at < len(known) and known[at] == batch:
        return doubts[batch]
    if 0 < at < len(known):
        return [max(pair) for pair in zip(doubts[known[at - 1]], doubts[known[at]], strict=True)]
    edge = known[0] if at == 0 else known[-1]
    return [max(doubt, BEYOND_DOUBT) for doubt in doubts[edge]]


def _anchors(profiled: Sequence[int]) -> tuple[int, ...]:
    """Return the fixed anchors and, as far as there is room, the profile's batch sizes."""
    extra = [batch for batch in profiled if batch not in ANCHORS][: MAX_ANCHORS - len(ANCHORS)]
    return tuple(sorted({*ANCHORS, *extra}))
