"""Round times before this server has measured any: a profile's cells, filled out with the parametric form."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from sglang_adaptive.policy.profile.profile import CostProfile
from sglang_adaptive.policy.throughput.cost.form import form_seconds
from sglang_adaptive.policy.throughput.cost.pairs import drafted_step, packing

ANCHORS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Batch sizes at which times are kept, beside a profile's; between them they are interpolated. SGLang captures graphs
at most of these."""
MAX_ANCHORS = 64
"""Bound of the table, whatever a profile holds."""
PROFILED, GUESSED = 0.02, 0.15
"""Relative standard deviation of a time: as profiled or between profiled batch sizes, and else. Profiles of one setup
differ by 2%, the form is off by 12% at worst (``form``)."""

Rows = Mapping[int, Sequence[float]]


class BaseCost:
    """Seconds and relative standard deviations over batch sizes and candidate steps."""

    def __init__(self, ladder: Sequence[int], profile: CostProfile | None) -> None:
        self.ladder = tuple(ladder)
        known: dict[int, dict[int, float]] = {}
        self._pairs: dict[tuple[int, int, int], float] = {}
        """Seconds by batch size, steps and budget, as profiled."""
        for cell in () if profile is None else profile.cells:
            if cell.budget is None:
                known.setdefault(cell.batch_size, {})[cell.steps] = cell.seconds
            else:
                self._pairs[cell.batch_size, cell.steps, cell.budget] = cell.seconds
        self.profiled = frozenset((batch, steps) for batch, row in known.items() for steps in row)
        """Batch sizes and steps that come from the profile as they are."""
        extra = [batch for batch in sorted(known) if batch not in ANCHORS][: MAX_ANCHORS - len(ANCHORS)]
        self.anchors = tuple(sorted({*ANCHORS, *extra}))
        self._rows = {batch: [_in_row(batch, row, steps) for steps in ladder] for batch, row in known.items()}
        self._deviations = {
            batch: [PROFILED if steps in row else GUESSED for steps in ladder] for batch, row in known.items()
        }
        self._alone = self.seconds(1)

    def seconds(self, batch_size: int) -> list[float]:
        """Return seconds by ladder index: linear between profiled batch sizes, after the form outside them."""
        below, above, part = _around(batch_size, self._rows)
        if below is None or above is None:
            return [form_seconds(batch_size, steps) for steps in self.ladder]
        if below == above:
            edge = zip(self._rows[below], self.ladder, strict=True)
            return [t * form_seconds(batch_size, steps) / form_seconds(below, steps) for t, steps in edge]
        return [a + (b - a) * part for a, b in zip(self._rows[below], self._rows[above], strict=True)]

    def pair_seconds(
        self, batch_size: int, steps: int, budget: int, plain: Sequence[float] | None = None
    ) -> tuple[float, bool]:
        """Return the seconds of rounds of *steps* that verify *budget* drafts a request, and whether they are profiled.

        With as many as it drafts it is a round without a budget. *plain* is ``seconds(batch_size)``.
        """
        found = self._pairs.get((batch_size, steps, budget))
        if found is not None:
            return found, True
        least = (self.seconds(batch_size) if plain is None else plain)[self.ladder.index(budget)]
        if budget == steps:
            return least, (batch_size, steps) in self.profiled
        drafts = (steps - budget) * drafted_step(self.ladder, self._alone, batch_size)
        return least + drafts + packing(batch_size), False

    def deviations(self, batch_size: int) -> list[float]:
        """Return relative standard deviations of :meth:`seconds`."""
        below, above, _ = _around(batch_size, self._deviations)
        if below is None or above is None:
            return [GUESSED] * len(self.ladder)
        least = GUESSED if below == above != batch_size else 0.0
        return [max(least, *pair) for pair in zip(self._deviations[below], self._deviations[above], strict=True)]


def _around(batch_size: int, rows: Rows) -> tuple[int | None, int | None, float]:
    """Return the known batch sizes around *batch_size*, twice the nearest at an edge, and the place between them."""
    known = sorted(rows)
    if not known:
        return None, None, 0.0
    at = bisect_left(known, batch_size)
    if at == len(known) or known[at] == batch_size or at == 0:
        edge = known[min(at, len(known) - 1)]
        return edge, edge, 0.0
    below, above = known[at - 1], known[at]
    return below, above, (batch_size - below) / (above - below)


def _in_row(batch: int, row: Mapping[int, float], steps: int) -> float:
    """Return the time at *steps* from the known steps of the same batch size."""
    below, above, part = _around(steps, {known: () for known in row})
    assert below is not None and above is not None, "a row has a cell"
    if below == above:
        return row[below] * form_seconds(batch, steps) / form_seconds(batch, below)
    return row[below] + (row[above] - row[below]) * part
