"""What a decision needs to know about one batch size, gathered once and kept until the times change."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sglang_adaptive.policy.throughput.cost.model import CostModel

MOST_ROWS = 512
"""Rows that are kept: more batch sizes than a server has."""


@dataclass(frozen=True, slots=True)
class RoundTimeRow:
    """Round times at one batch size."""

    padded: int
    """The batch size that is paid for."""
    anchor: int
    """The batch size that readings are filed under."""
    rungs: tuple[tuple[int, int, float], ...]
    """(ladder index, steps, seconds) of the steps that may run here, ascending."""
    allowed: frozenset[int]
    seconds: Mapping[int, float]
    """By steps, all candidates."""
    deviation: Mapping[int, float]
    """Relative standard deviation of ``seconds``."""
    log_base: Mapping[tuple[int, int], float]
    """By steps and budget, log of the base table's seconds, which readings are compared with."""
    zero: float | None
    """Seconds at zero steps; None when 0 is no candidate."""
    took: Mapping[tuple[int, int], float]
    """Seconds by steps and budget, the steps again where all drafts are verified."""
    packed: Mapping[int, Sequence[tuple[int, float, float]]]
    """By steps, (budget, seconds, relative standard deviation) of the budgets that may go with them; empty without."""
    budgets: Mapping[int, int]
    """By steps, the budget that ``rungs``, ``seconds`` and ``deviation`` are of, where there is one."""


class RoundTimes:
    """Rows by batch size, in bounded memory."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._with_budgets = False
        self._rows: dict[int, RoundTimeRow] = {}
        self._graph_sizes: list[int] = []
        self._captured: Mapping[int, frozenset[int]] = {}

    @property
    def graph_sizes(self) -> Sequence[int]:
        """Batch sizes with CUDA graphs, ascending; empty when graphs are off."""
        return self._graph_sizes

    def at(self, batch_size: int) -> RoundTimeRow:
        """Return the row of *batch_size*, padded to the next size that has CUDA graphs."""
        found = self._rows.get(batch_size)
        if found is None:
            if len(self._rows) >= MOST_ROWS:
                self._rows.clear()
            found = self._rows[batch_size] = self._make(self._padded(max(1, batch_size)))
        return found

    def set_graph_sizes(self, sizes: Sequence[int]) -> None:
        """Say which batch sizes have CUDA graphs."""
        self._graph_sizes = sorted(sizes)
        self._rows.clear()

    def set_captured(self, captured: Mapping[int, frozenset[int]]) -> None:
        """Say which steps have graphs at a batch size, where they were captured before the policy was made."""
        self._captured = captured
        self._rows.clear()

    def allowed(self, batch_size: int) -> tuple[int, ...]:
        """Return the steps that may run at *batch_size*: all, or those that have graphs where another policy chose."""
        captured = self._captured.get(batch_size, self._cost.ladder)
        return tuple(steps for steps in self._cost.ladder if steps in captured)

    def allow_budgets(self, allowed: bool) -> None:
        """Say whether rounds may have budgets."""
        self._with_budgets = allowed
        self._rows.clear()

    def forget(self) -> None:
        """Build rows anew: the times have changed."""
        self._rows.clear()

    def _make(self, batch_size: int) -> RoundTimeRow:
        ladder, anchor = self._cost.ladder, self._cost.anchor(batch_size)
        seconds, deviations = self._cost.row(batch_size)
        base = self._cost.base.seconds(batch_size)
        allowed = frozenset(self.allowed(batch_size))
        log_base = {(steps, steps): math.log(t) for steps, t in zip(ladder, base, strict=True)}
        took = {(steps, steps): t for steps, t in zip(ladder, seconds, strict=True)}
        packed: dict[int, list[tuple[int, float, float]]] = {}
        for steps in allowed if self._with_budgets else ():
            pairs = packed[steps] = []
            for budget in sorted(allowed):  # a pair runs where both have graphs
                if 0 < budget < steps:
                    t, doubt, start = self._cost.pair(batch_size, steps, budget, (seconds, deviations), base)
                    pairs.append((budget, t, doubt))
                    took[steps, budget], log_base[steps, budget] = t, math.log(start)
        return RoundTimeRow(
            padded=batch_size,
            anchor=anchor,
            rungs=tuple((i, s, seconds[i]) for i, s in enumerate(ladder) if s in allowed),
            allowed=allowed,
            seconds=dict(zip(ladder, seconds, strict=True)),
            deviation=dict(zip(ladder, deviations, strict=True)),
            log_base=log_base,
            zero=seconds[0] if ladder[0] == 0 else None,
            took=took,
            packed=packed,
            budgets={},
        )

    def _padded(self, batch_size: int) -> int:
        at = bisect_left(self._graph_sizes, batch_size)
        return self._graph_sizes[at] if at < len(self._graph_sizes) else batch_size
