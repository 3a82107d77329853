"""Round times as this server's clock reads them: robust running medians, waiting to be shared.

The rounds of a depth take equally long, but for those at zero steps: one in several runs the draft's extend for all of
them, so there the mean of a whole cycle is what counts.

Only rank 0's readings count. They change no decision until the exported table comes back through ``CostModel.load``, so
every rank decides on the same table.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from typing import Any

from sglang_adaptive.policy.throughput.cost.zero_cycle import ZeroCycle

RING = 31
"""Readings behind a cell's median."""
FRESH, THIN, LONG, THINNER = 8, 4, 128, 64
"""Of a full cell's readings in one stay the first 8 are kept, then every fourth, and after 128 every 64th: the median
outlives a spell of slower rounds. All depths share such a spell, so a depth that is left in one must not look slow."""
SETTLED = 3
"""Readings that outvote a single outlier."""
ABSENT_ROUNDS = 64
"""Rounds without a reading after which a cell's old ones are checked before they are believed."""
CHANGED = 0.03
"""A cell that was not timed for ABSENT_ROUNDS gives up old readings when SETTLED new ones are off by so much (log)."""
OLD_KEPT = 4
"""Old readings that stay then: more than SETTLED, for a probe may be disturbed from end to end, and cannot decide."""
SHARE_GAIN = 0.02
"""Weight of the latest round in the part of rounds that could be timed."""
JUMP, JUMP_SPREADS, JUMP_READINGS = 0.04, 2.25, 7
"""When the median of so many readings of rounds in a row is off by this much (log), and by this many of the readings'
standard deviations, everything became slower or faster. It moves every other cell, so chance alone must not do it."""
STALL, STALL_ROUNDS = 0.3, 128
"""A reading of a full cell that is too long by this much (log) is set aside: a host that stalls makes rounds twice as
long for half a second. What goes on for more than so many rounds is no stall."""
FIRST_SPREAD, SPREAD_GAIN, CLIP = 0.02, 1.0 / 32.0, 4.0
"""What the standard deviation of a cell's readings starts from (log), how fast it follows, and what one reading counts
at most, in standard deviations."""
MOST_OF_A_CYCLE = 8
"""Readings that a cycle of zero-step rounds counts for at most: cycles differ in length, and one mean must not fill a
cell."""
PAIR = 2.0 / math.sqrt(math.pi)
"""Mean distance of two readings of a normal distribution, in standard deviations."""


class Cell:
    """Readings of one batch size and depth: log-ratios to the base table, the common drift taken out."""

    __slots__ = ("_check", "_last", "_order", "_ring", "_stay", "drift", "last_round", "median", "readings", "spread")

    def __init__(self) -> None:
        self._ring: list[float] = []
        """The latest readings, ascending."""
        self._order: deque[float] = deque()
        """The same in the order in which they came; what outlived a check stands first, ascending."""
        self._stay = 0
        """Readings kept or passed over since the depth came back to this batch size after an absence."""
        self._check: list[float] | None = None
        """Readings after a long absence, until they decide about the old ones; None when that is decided."""
        self._last: float | None = None
        """The reading before, if of the same stay."""
        self.spread = FIRST_SPREAD
        """Standard deviation of the readings (log), by how far one is from the next: slow changes do not count."""
        self.median = 0.0
        """Lower median, because what disturbs a round makes it longer."""
        self.readings = 0
        """Readings ever taken."""
        self.drift = 0.0
        """Common drift when the cell was last timed."""
        self.last_round = 0
        """Index of the latest round that the cell was timed in."""

    @property
    def fresh(self) -> int:
        """Readings behind the median."""
        return len(self._ring)

    @property
    def full(self) -> bool:
        """Whether so much is known that a reading far too long says nothing of the cell."""
        return len(self._ring) >= RING

    @property
    def settled(self) -> bool:
        """Whether a reading can be judged against the median."""
        return len(self._ring) >= SETTLED and self._check is None

    def add(self, value: float, drift: float) -> float:
        """Take in one reading, from which *drift* was subtracted; return what is to be added to the drift."""
        self.readings += 1
        if self._check is None:
            self._keep(value)
            return 0.0
        self._check.append(value)
        if len(self._check) < SETTLED:
            return 0.0
        check, self._check = self._check, None
        error = sorted(check)[SETTLED // 2] - self.median
        ended = 0.0
        if abs(error) > CHANGED:
            ended = _back(drift, error)
            if abs(error - ended) > CHANGED:
                self._forget_all_but(OLD_KEPT)
        for reading in check:
            self._keep(reading - ended)
        return ended

    def scatter(self, value: float) -> None:
        """Learn from *value* how far readings are apart; once a reading, however many rounds it stands for."""
        if self._last is not None:
            apart = min(abs(value - self._last) / PAIR, CLIP * self.spread)
            self.spread += SPREAD_GAIN * (apart - self.spread)
        self._last = value

    def enter(self, absent: bool) -> None:
        """Be timed again; after a long absence, which begins a stay, the first readings say if the old ones hold."""
        self._last = None
        if absent:
            self._stay = 0
            if len(self._ring) >= SETTLED:
                self._check = []

    def _forget_all_but(self, kept: int) -> None:
        """Forget the readings but for the *kept* ones that lie around the median."""
        below = max(0, len(self._ring) - kept) // 2
        self._ring = self._ring[below : below + kept]
        self._order = deque(self._ring)

    def _keep(self, value: float) -> None:
        self._stay += 1
        if self.full:
            if self._stay > FRESH and self._stay % (THIN if self._stay < LONG else THINNER):
                return
            self._ring.remove(self._order.popleft())
        insort(self._ring, value)
        self._order.append(value)
        self.median = self._ring[(len(self._ring) - 1) // 2]


def _back(drift: float, error: float) -> float:
    """Return the part of *error*, found at a cell after an absence, that a common *drift* explains which is over.

    It began where it was seen, and may have ended, or never have been common, where nobody looked. Were the cell taken
    to have changed in its place, every such end would be missed and the drift would only grow: on a CPU whose
    neighbours come and go it went to a factor of 13, and with it every cell that was not timed meanwhile.
    """
    return math.copysign(min(abs(drift), abs(error)), error) if drift * error < 0.0 else 0.0


class Readings:
    """The cells that this server has timed, and the drift that they share."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], Cell] = {}
        """By anchor batch size and steps."""
        self.drift = 0.0
        """Log of how much slower everything is than when its cells were learnt."""
        self.share = 1.0
        """Part of the latest rounds that could be timed."""
        self._current: Cell | None = None
        self._cycle = ZeroCycle()
        self._recent: deque[float] = deque(maxlen=JUMP_READINGS)
        """By how much the latest readings were off (log), of rounds in a row in one settled cell."""
        self._slow_rounds = 0
        """Rounds that were STALL too long since the last one that was not; of full cells, whichever they are."""

    def skip(self, steps: int, extended: bool = True) -> None:
        """Take note of a round of *steps* that could not be timed; *extended* is as in ``RoundObservation``.

        What held the scheduler up, the launch of a prefill say, lets the device idle. On an H200 the next rounds are up
        to 13% faster, for some 25 ms: true of them, but nothing to expect of other cells.
        """
        self.share -= SHARE_GAIN * self.share
        self._recent.clear()
        if steps:
            self._cycle.begin()
        else:
            self._cycle.add(None, extended)

    def add(
        self, anchor: int, steps: int, base: float, seconds: float, round_index: int, extended: bool = True
    ) -> None:
        """Take in a round of *seconds*; *base* is the log of the seconds that the base table says for it.

        *round_index* counts all rounds, also those that could not be timed. *extended* is as in ``RoundObservation``.
        """
        self.share += SHARE_GAIN * (1.0 - self.share)
        cell = self.cells.get((anchor, steps))
        if cell is None:
            cell = self.cells[anchor, steps] = Cell()
        if cell is not self._current:
            self._current = cell
            self._recent.clear()
            self._cycle.restart()
            # What changed while a cell was not timed need not be common to the others.
            cell.enter(round_index - cell.last_round > ABSENT_ROUNDS)
        cell.last_round = round_index
        if steps:
            self._cycle.begin()
            rounds = 1
        else:
            cycle = self._cycle.add(seconds, extended)
            if cycle is None:
                return
            seconds, rounds = cycle[0], min(cycle[1], MOST_OF_A_CYCLE)
        value = math.log(seconds) - base - self.drift
        if cell.full and self._stalls(value - cell.median, rounds):
            return
        if cell.settled:
            self._follow(value - cell.median, max(JUMP, JUMP_SPREADS * cell.spread))
        cell.scatter(value)
        for _ in range(rounds):
            ended = cell.add(value, self.drift)
            if ended:
                self.drift += ended
                value -= ended
                self._recent.clear()
        cell.drift = self.drift

    def export(self) -> dict[str, Any]:
        """Return share, drift and cells as builtins; the latter two as ``CostModel.load`` takes them."""
        cells = [
            [anchor, steps, cell.median + cell.drift, cell.fresh, cell.drift]
            for (anchor, steps), cell in self.cells.items()
        ]
        return {"drift": self.drift, "share": self.share, "cells": cells}

    def _stalls(self, error: float, rounds: int) -> bool:
        """Whether a reading of a full cell, *error* too long (log) and of so many *rounds*, is to be set aside.

        A stall is over before it matters, unless it is taken for a common slowdown: other depths are believed to share
        most of one but not all, so they look quicker, the policy leaves, and what was not shared sticks to the depth
        that met it (on an H200 5 steps passed for 9% slower than they are, for 70 seconds).
        """
        self._slow_rounds = self._slow_rounds + rounds if error > STALL else 0
        return 0 < self._slow_rounds <= STALL_ROUNDS

    def _follow(self, error: float, jump: float) -> None:
        """Move the common drift when a settled cell is off by *jump*, reading after reading.

        Slow changes are left to each cell's own median: they may be its context growing, and carried over to cells
        that are not being timed they would add up to a walk (seen on an H200: a factor of 2.8 in 45,000 rounds
        of a GPU at constant speed).
        """
        recent = self._recent
        recent.append(error)
        if abs(error) > jump and len(recent) == JUMP_READINGS:
            middle = sorted(recent)[JUMP_READINGS // 2]
            if abs(middle) > jump:
                self.drift += middle
                recent.clear()
