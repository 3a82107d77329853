"""How long rounds take on this server: what two kinds of rounds differ by, learned from rounds close together.

A reading is the log of a round's seconds over those of the base table (``cost``). Whatever slows the whole machine for
seconds (a neighbor, a longer context, a lower clock) is in the readings on both sides of a change of kinds, so it
cancels in their difference:

    d(a, b) = middle(first SIDE readings of b) - middle(last SIDE readings of a)

A pair of kinds keeps its latest differences, so a single wrong one is outvoted. If a few rounds of b ran between rounds
of a, both differences have the same readings of b and count as one. The level of each kind is kept as well, for kinds
that never ran close together. How far to trust either is measured too.

Only rank 0's readings count. They change no decision until the export returns through ``CostModel.load``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Sequence
from itertools import accumulate
from statistics import fmean, median
from typing import Any, NamedTuple

from sglang_adaptive.policy.observation import ZeroCycle

SIDE = 9
"""Most readings on one side of a difference, and differences kept of a pair. With 15 of these, 0.6% instead of 0.3% of
turns of 300 rounds are below 0.95 of the best held depth (emulated)."""
NEAR_ROUNDS = 2 * SIDE
"""Most rounds between the readings of a difference. With 8, 1.0% instead of 0.3% of these turns are."""
SINGLE = 0.6
"""Weight of a difference with a single reading on one side. With 1, the worst of 100 machines that change has 0.793
instead of 0.909 of the best steps, and a busy host 0.0015 less (recorded noise)."""
CHANGED = 0.15
"""Two differences that agree start a pair anew if they depart from the earlier ones by this much. Without this, a busy
host has 0.855 instead of 0.984 of the best depth in the worst 500 rounds (recorded noise)."""
OUTLIER = 0.2
"""How far off (log) a single reading may be. A level has this standard deviation over the number of its readings, and a
short visit with two sides that differ by as much weighs half; without the latter, a busy host has 0.008 less, and with
CHANGED for both 0.003 (recorded noise)."""
LONE, LONE_NOISES = 0.5 * CHANGED, 4.0
"""Least standard deviation of a difference, over the number of them, and at least so many times the noise: a single one
may be an outlier. On a busy host 0.977 of the oracle are reached with the second and 0.961 without (recorded noise)."""
LONE_SHARE = 0.5
"""Least standard deviation of a lone difference, as a share of it. Without this, zero steps that first ran just before
the machine slowed down by 1.5 seemed twice as fast and stayed for 451 rounds, at 0.535 of the best depth (emulated)."""
NOISE, KEPT = 0.025, 32
"""Departure of a difference from the earlier ones, and half of that of a level from the visit before, until measured,
and the departures and a kind's readings kept. If levels are always taken to be so steady, a busy host has 0.012
less."""


class Noise:
    """How much readings scatter on this machine, over all kinds and batch sizes."""

    def __init__(self) -> None:
        self.differences = deque([NOISE] * 10, maxlen=KEPT)
        """Departures of differences from the earlier ones of their pair."""
        self.levels = deque([2.0 * NOISE] * 2, maxlen=KEPT)
        """Departures of levels from those of the visit before."""

    @property
    def of_differences(self) -> float:
        """Standard deviation, from the median absolute one."""
        return max(0.01, 1.48 * median(self.differences))

    @property
    def of_levels(self) -> float:
        """The same of levels, from the mean absolute one."""
        return max(0.01, 1.25 * fmean(self.levels))


class Visit:
    """Readings of one kind without another between them."""

    __slots__ = ("kind", "last", "usual", "values")

    def __init__(self, kind: int, usual: float | None) -> None:
        self.kind, self.last = kind, 0
        self.values: deque[float] = deque(maxlen=SIDE)
        self.usual = usual
        """The kind's level before the visit; None if unknown, or counted."""


class Change(NamedTuple):
    """A change of kinds; its difference is final once the visit after it has SIDE readings."""

    before: Visit
    after: Visit
    other: float | None
    """The difference at the other end of *before*, a short visit: both count as one."""

    @property
    def kinds(self) -> tuple[int, int]:
        return min(self.before.kind, self.after.kind), max(self.before.kind, self.after.kind)

    def difference(self) -> tuple[float, float]:
        """Return the difference so far, the larger kind minus the smaller, and its weight."""
        before, after = self.before, self.after
        more = middle(after.values) - middle(before.values)
        value = more if after.kind > before.kind else -more
        weight = SINGLE if min(len(before.values), len(after.values)) == 1 else 1.0
        if self.other is None:
            return value, weight
        return 0.5 * (self.other + value), weight / (1.0 + ((self.other - value) / OUTLIER) ** 2)


class Place:
    """The readings at one anchor batch size."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise
        self._visit: Visit | None = None
        self._change: Change | None = None
        """The latest change, while its difference is not final."""
        self._own: dict[int, deque[float]] = {}
        self._counts: dict[int, int] = {}
        self._pairs: dict[tuple[int, int], deque[tuple[float, float]]] = {}
        """Differences and their weights."""
        self._exported: list[Any] | None = None
        self._summaries: dict[tuple[int, int], tuple[float, list[Any]]] = {}
        """By pair that did not change since an export: the noise then, and its summary."""

    def add(self, kind: int, value: float, now: int, rounds: int) -> None:
        """Add a reading, of *rounds* rounds, in round *now*."""
        visit = self._visit
        if visit is None or visit.kind != kind or now - visit.last > NEAR_ROUNDS:
            visit = self._begin(kind, now)
        visit.values.append(value)
        visit.last, self._exported = now, None
        if len(visit.values) == SIDE:
            self._close()
        if visit.usual is not None and 2 * len(visit.values) > SIDE:
            self._noise.levels.append(abs(middle(visit.values) - visit.usual))
            visit.usual = None
        self._own.setdefault(kind, deque(maxlen=KEPT)).append(value)
        self._counts[kind] = self._counts.get(kind, 0) + rounds

    def export(self) -> list[Any]:
        """Return as builtins what ``CostModel.load`` needs.

        That is the latest kind and its level, [kind, level, deviation, readings] of each kind and [kind, kind,
        difference, deviation, differences, latest difference] of each pair.
        """
        if self._exported is None:
            assert self._visit is not None, "a place has a reading"
            latest, noise, scatter = self._visit.kind, self._noise.of_differences, self._noise.of_levels
            own = [
                [kind, median(values), math.hypot(scatter, OUTLIER / len(values)), self._counts[kind]]
                for kind, values in self._own.items()
            ]
            open_pair = [] if self._change is None else [self._change.kinds]
            told = [self._told(kinds, noise) for kinds in dict.fromkeys([*self._pairs, *open_pair])]
            self._exported = [latest, self._level(latest), own, told]
        return self._exported

    def _told(self, kinds: tuple[int, int], noise: float) -> list[Any]:
        """Return what the export says about a pair."""
        if self._change is not None and kinds == self._change.kinds:
            found = [*self._pairs.get(kinds, ()), self._change.difference()]
            return [*kinds, *summary(found[-SIDE:], noise)]
        known = self._summaries.get(kinds)
        if known is None or known[0] != noise:
            known = self._summaries[kinds] = noise, [*kinds, *summary(self._pairs[kinds], noise)]
        return known[1]

    def _level(self, kind: int) -> float:
        return median(list(self._own[kind])[-SIDE:])

    def _begin(self, kind: int, now: int) -> Visit:
        before, last, other = self._visit, self._change, None
        near = before is not None and before.kind != kind and now - before.last <= NEAR_ROUNDS
        if near and last is not None and last.before.kind == kind and last.other is None:
            other, _ = last.difference()
        else:
            self._close()
        known = 2 * len(self._own.get(kind, ())) > SIDE
        visit = self._visit = Visit(kind, self._level(kind) if known else None)
        self._change = Change(before, visit, other) if near and before is not None else None
        return visit

    def _close(self) -> None:
        if self._change is None:
            return
        value, weight = self._change.difference()
        found = self._pairs.setdefault(self._change.kinds, deque(maxlen=SIDE))
        if found:
            self._noise.differences.append(abs(value - median(earlier for earlier, _ in found)))
        if len(found) > 2:
            *earlier, last = [earlier for earlier, _ in found]
            away = min(abs(one - median(earlier)) for one in (last, value))
            if abs(value - last) < 0.5 * CHANGED and away > CHANGED:
                for _ in earlier:
                    found.popleft()
        found.append((value, weight))
        self._summaries.pop(self._change.kinds, None)
        self._change = None


class Readings:
    """The batch sizes timed on this server."""

    def __init__(self) -> None:
        self._noise = Noise()
        self._places: dict[int, Place] = {}
        self._round = 0
        self._cycle = ZeroCycle()
        self._current: tuple[int, int] | None = None
        """Anchor and kind of the latest timed round."""
        self._zero: tuple[int, float] | None = None
        """Anchor and base of the zero-step rounds since the last complete cycle."""

    def skip(self, steps: int, extended: bool = True) -> None:
        """Note a round of *steps* that could not be timed; *extended* is as in ``RoundObservation``."""
        self._round += 1
        if steps:
            self._leave_zero()
        else:
            self._cycle.add(None, extended)

    def add(self, anchor: int, kind: int, base: float, seconds: float, extended: bool = True) -> None:
        """Add a round of *seconds*; *base* is the log of its seconds in the base table."""
        self._round += 1
        if kind:
            self._leave_zero()
        if (anchor, kind) != self._current:
            self._current = anchor, kind
            self._cycle.restart()
        rounds = 1
        if not kind:
            cycle = self._cycle.add(seconds, extended)
            if cycle is None:
                self._zero = anchor, base
                return
            self._zero = None
            seconds, rounds = cycle
        self._add(anchor, kind, math.log(seconds) - base, rounds)

    def export(self) -> dict[str, Any]:
        """Return everything as builtins, as ``CostModel.load`` takes it."""
        places = [[anchor, *place.export()] for anchor, place in self._places.items()]
        return {"noise": self._noise.of_differences, "places": places}

    def _leave_zero(self) -> None:
        """End the zero-step rounds; an incomplete cycle counts as one reading, which lacks the draft extend."""
        part = self._cycle.part()
        if part is not None and self._zero is not None:
            anchor, base = self._zero
            self._add(anchor, 0, math.log(part) - base, 1)
        self._zero = None
        self._cycle.begin()

    def _add(self, anchor: int, kind: int, value: float, rounds: int) -> None:
        place = self._places.get(anchor)
        if place is None:
            place = self._places[anchor] = Place(self._noise)
        place.add(kind, value, self._round, rounds)


def middle(logs: Collection[float]) -> float:
    """Return the median of *logs*; of two, the log of the mean of what they are the logs of."""
    return math.log(0.5 * sum(map(math.exp, logs))) if len(logs) == 2 else median(logs)


def summary(found: Sequence[tuple[float, float]], noise: float) -> tuple[float, float, int, float]:
    """Return the weighted median of differences, its standard deviation, their number and the latest.

    *noise*, the deviation of any pair's differences, counts like two of this pair's own.
    """
    ordered = sorted(found)
    reached = list(accumulate(weight for _, weight in ordered))
    total = reached[-1]
    # Two values where half of the weight is on either side.
    low, high = (ordered[bisect_left(reached, 0.5 * total + by)][0] for by in (-1e-9, 1e-9))
    center = 0.5 * (low + high)
    away = 1.48 * median(abs(value - center) for value, _ in ordered)
    spread = (2.0 * noise + away * total) / (2.0 + total)
    least = max(LONE, LONE_NOISES * noise, LONE_SHARE * abs(center) if len(ordered) == 1 else 0.0)
    return center, max(1.25 * spread / math.sqrt(total), least / total), len(ordered), found[-1][0]
