"""Round times by batch size as decisions need them, kept until times change."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sglang_adaptive.policy.throughput.cost import CostModel


@dataclass(frozen=True, slots=True)
class RoundTimeRow:
    """Round times at one batch size, as decisions need them."""

    padded: int
    """The batch size including padding."""
    anchor: int
    """The batch size under which readings are stored."""
    rungs: tuple[tuple[int, int, float], ...]
    """(ladder index, steps, seconds) of the steps that may run here, ascending."""
    allowed: frozenset[int]
    seconds: Mapping[int, float]
    """By steps, for all candidates."""
    deviation: Mapping[int, float]
    """Relative standard deviation of ``seconds``."""
    noise: float
    """Standard deviation of a measured difference between two of them (log)."""
    surprise: float
    """How much farther times are from the profile, or the form, than was expected; 1 if as far."""
    log_base: Mapping[int, float]
    """Log of the base table's seconds, the reference for readings, by steps or drafts looked up."""
    lookups: Mapping[int, float]
    """Seconds of the lookup rounds that may run here, by drafts, ascending."""


class RoundTimeTable:
    """Rows by batch size, kept until times change."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._lookups: Mapping[int, range] = {}
        self._rows: dict[int, RoundTimeRow] = {}
        self.graph_sizes: list[int] = []
        """Batch sizes with CUDA graphs, ascending; empty when graphs are off."""
        self._captured: Mapping[int, frozenset[int]] = {}

    def at(self, batch_size: int) -> RoundTimeRow:
        """Return the row of *batch_size*, padded to the next size with CUDA graphs."""
        found = self._rows.get(batch_size)
        if found is None:
            padded = self._padded(max(1, batch_size))
            found = self._rows[batch_size] = self.at(padded) if padded != batch_size else self._make(padded)
        return found

    def set_graph_sizes(self, sizes: Sequence[int]) -> None:
        self.graph_sizes = sorted(sizes)
        self.forget()

    def set_captured(self, captured: Mapping[int, frozenset[int]]) -> None:
        """Set which steps have graphs at a batch size, if they were captured before the policy was created."""
        self._captured = captured
        self.forget()

    def allowed(self, batch_size: int) -> tuple[int, ...]:
        """Return the steps that may run at *batch_size*: all, or those with graphs if captured for another policy."""
        ladder = self._cost.ladder
        return tuple(steps for steps in ladder if steps in self._captured.get(batch_size, ladder))

    def allow_lookups(self, kinds: Mapping[int, range]) -> None:
        """Set the draft counts that rounds may look up, and the batch sizes of each."""
        self._lookups = kinds
        self.forget()

    def lookups(self, batch_size: int) -> tuple[int, ...]:
        """Return the draft counts that a round of *batch_size* may look up."""
        if self.graph_sizes and batch_size not in self.graph_sizes:
            return ()
        captured = self._captured.get(batch_size, self._lookups)
        return tuple(drafts for drafts, sizes in self._lookups.items() if batch_size in sizes and drafts in captured)

    def forget(self) -> None:
        self._rows.clear()

    def _make(self, batch_size: int) -> RoundTimeRow:
        ladder, anchor = self._cost.ladder, self._cost.anchor(batch_size)
        seconds, deviations, base = self._cost.row(batch_size)
        allowed = frozenset(self.allowed(batch_size))
        log_base = {steps: math.log(t) for steps, t in zip(ladder, base, strict=True)}
        lookups = {}
        for drafts in self.lookups(batch_size):
            lookups[drafts], start = self._cost.lookup(batch_size, drafts)
            log_base[drafts] = math.log(start)
        return RoundTimeRow(
            padded=batch_size, anchor=anchor, allowed=allowed, log_base=log_base, lookups=lookups,
            rungs=tuple((at, steps, seconds[at]) for at, steps in enumerate(ladder) if steps in allowed),
            seconds=dict(zip(ladder, seconds, strict=True)), deviation=dict(zip(ladder, deviations, strict=True)),
            noise=self._cost.noise, surprise=self._cost.surprise,
        )  # fmt: skip

    def _padded(self, batch_size: int) -> int:
        at = bisect_left(self.graph_sizes, batch_size)
        return self.graph_sizes[at] if at < len(self.graph_sizes) else batch_size
