"""What a decision needs to know about one batch size, gathered once and kept until the times change."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sglang_adaptive.policy.throughput.cost.cost import CostModel, CostRow
from sglang_adaptive.policy.throughput.cost.pruning import contenders

MOST_VIEWS = 512
MOST_BENEFIT = 0.03
"""Largest benefit of the doubt about the time of zero steps (log)."""


@dataclass(frozen=True, slots=True)
class View:
    """Round times at one batch size."""

    padded: int
    """The batch size that is paid for."""
    anchor: int
    """The batch size that readings are filed under."""
    pairs: tuple[tuple[int, float], ...]
    """(steps, seconds) of the depths that may run here, ascending."""
    allowed: frozenset[int]
    seconds: Mapping[int, float]
    """By steps, the whole ladder."""
    deviation: Mapping[int, float]
    """Relative standard deviation of ``seconds``."""
    at_most: Mapping[int, float]
    """Seconds two standard deviations up; never more than those of a deeper depth, for deeper is never quicker."""
    log_base: Mapping[int, float]
    """Log of the base table's seconds, which readings are compared with."""
    zero: float | None
    """Seconds at zero steps; None when the ladder has no zero."""
    zero_at_most: float | None
    """The same, two standard deviations up: speculation has the benefit of the doubt, within limits."""


class Views:
    """Views by batch size, in bounded memory."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._views: dict[int, View] = {}
        self._graph_sizes: list[int] = []
        self._captured: Mapping[int, frozenset[int]] = {}
        self._allowed = self._prune()

    @property
    def graph_sizes(self) -> Sequence[int]:
        """Batch sizes with CUDA graphs, ascending; empty when graphs are off."""
        return self._graph_sizes

    def at(self, batch_size: int) -> View:
        """Return the view of *batch_size*, padded to the next size that has CUDA graphs."""
        found = self._views.get(batch_size)
        if found is None:
            if len(self._views) >= MOST_VIEWS:
                self._views.clear()
            found = self._views[batch_size] = self._make(self._padded(max(1, batch_size)))
        return found

    def set_graph_sizes(self, sizes: Sequence[int]) -> None:
        """Say which batch sizes have CUDA graphs."""
        self._graph_sizes = sorted(sizes)
        self._views.clear()

    def set_captured(self, captured: Mapping[int, frozenset[int]]) -> None:
        """Say which depths have graphs at a batch size, where they were captured before the policy was made."""
        self._captured = captured
        self._views.clear()

    def allowed(self, batch_size: int) -> tuple[int, ...]:
        """Return the depths that may run at *batch_size*: all when graphs are off, else those that get graphs.

        Fixed by what was known when graphs were captured, which is once.
        """
        if not self._graph_sizes:
            return self._cost.ladder
        if batch_size in self._captured:
            return tuple(steps for steps in self._cost.ladder if steps in self._captured[batch_size])
        anchors = self._cost.base.anchors
        return self._allowed[anchors[min(bisect_left(anchors, batch_size), len(anchors) - 1)]]

    def forget(self) -> None:
        """Build views anew: the times have changed."""
        self._views.clear()

    def _prune(self) -> dict[int, tuple[int, ...]]:
        rows = ((anchor, self._cost.row(anchor)) for anchor in self._cost.base.anchors)
        return {anchor: contenders(self._cost.ladder, row.seconds, row.deviation) for anchor, row in rows}

    def _make(self, batch_size: int) -> View:
        ladder, row = self._cost.ladder, self._cost.row(batch_size)
        anchor, logs = self._cost.bin(batch_size)
        allowed = frozenset(self.allowed(batch_size))
        has_zero = ladder[0] == 0
        return View(
            padded=batch_size,
            anchor=anchor,
            pairs=tuple(pair for pair in row.by_steps if pair[0] in allowed),
            allowed=allowed,
            seconds=dict(row.by_steps),
            deviation=dict(zip(ladder, row.deviation, strict=True)),
            at_most=_at_most(row),
            log_base=dict(zip(ladder, logs, strict=True)),
            zero=row.seconds[0] if has_zero else None,
            zero_at_most=row.seconds[0] * math.exp(min(MOST_BENEFIT, 2.0 * row.deviation[0])) if has_zero else None,
        )

    def _padded(self, batch_size: int) -> int:
        at = bisect_left(self._graph_sizes, batch_size)
        return self._graph_sizes[at] if at < len(self._graph_sizes) else batch_size


def _at_most(row: CostRow) -> dict[int, float]:
    bounds: dict[int, float] = {}
    least = math.inf
    for (steps, seconds), deviation in zip(reversed(row.by_steps), reversed(row.deviation), strict=True):
        bounds[steps] = least = min(least, seconds * math.exp(2.0 * deviation))
    return bounds
