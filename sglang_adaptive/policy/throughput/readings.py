"""How long rounds take on this server: what two kinds of rounds differ by, learned from rounds close together.

A kind is a number of steps, or of drafts looked up. A reading is the log of a round's seconds over those of the base
table (``cost``). Whatever slows the whole machine for seconds (a neighbor, a longer context, a lower clock) is in the
readings on both sides of a change of kinds, so it cancels in their difference:

    d(a, b) = middle(first SIDE readings of b) - middle(last SIDE readings of a)

A pair of kinds keeps its latest KEPT differences, so a single wrong one is outvoted. ``middle`` is the median, which
outvotes a late result; of two readings it is the log of their mean, because a late result takes from the next round
what it adds to its own. If a few rounds of b ran between rounds of a, both differences have the same readings of b and
count as one.

The level of each kind is kept as well, for kinds that never ran close together. How much levels wander between visits,
and how much a new difference departs from the earlier ones, is measured too, and says how far to trust either.

Only rank 0's readings count. They change no decision until the export returns through ``CostModel.load``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from statistics import median
from typing import Any

from sglang_adaptive.policy.observation import ZeroCycle

SIDE = 9
"""Most readings on one side of a difference."""
NEAR_ROUNDS = 16
"""Most rounds between the readings of a difference. With 8, 1.0% instead of 0.3% of turns of 300 rounds are below 0.95
of the best held depth (emulated replay with spells and late results, 140 runs)."""
KEPT, OWN_KEPT = 9, 31
"""Differences kept of a pair, and readings of a kind. With 15 differences it is 0.6%."""
SINGLE = 0.6
"""Weight of a difference with a single reading on one side."""
APART = 0.2
"""Distance of the two sides of a short visit at which their mean weighs half."""
CHANGED = 0.15
"""Two differences that agree start a pair anew if they depart from the earlier ones by this much."""
LONE, LONE_NOISES, FEW = 0.07, 4.0, 0.2
"""Least standard deviation of a difference, at least so many times the noise, and of a level, over the number of them:
a single one may be an outlier. On the recorded noise of a busy host, 0.977 of the oracle, and 0.915 in the worst of 50
traces, are reached with the second and 0.961 and 0.820 without (simulated acceptance)."""
NOISE, UNSTEADY = 0.025, 0.05
"""Departure of a difference from the earlier ones, and of a level from the one before, until they are measured."""
MEMORY = 32
"""Departures after which both are halved in weight, or forgotten."""
_DEVIATION = 1.48
"""Standard deviation of a normal distribution over its median absolute deviation."""


class Noise:
    """How much readings scatter on this machine, measured over all kinds and batch sizes."""

    def __init__(self) -> None:
        self._departures = deque([NOISE] * (MEMORY // 3), maxlen=MEMORY)
        self._moved, self._visits = 2.0 * UNSTEADY, 2.0

    @property
    def of_differences(self) -> float:
        """Standard deviation of a difference from the earlier ones of its pair."""
        return max(0.01, _DEVIATION * median(self._departures))

    @property
    def of_levels(self) -> float:
        """Standard deviation of a kind's level from visit to visit."""
        return max(0.01, 1.25 * self._moved / self._visits)

    def add_difference(self, departure: float) -> None:
        """Count by how much a difference departs from the earlier ones."""
        self._departures.append(abs(departure))

    def add_level(self, departure: float) -> None:
        """Count by how much a kind's level departs from the one of its visit before."""
        self._moved, self._visits = self._moved + abs(departure), self._visits + 1.0
        if self._visits > MEMORY:
            self._moved, self._visits = 0.5 * self._moved, 0.5 * self._visits


class Visit:
    """Readings of one kind without another between them."""

    __slots__ = ("kind", "last", "usual", "values")

    def __init__(self, kind: int, now: int, usual: float | None) -> None:
        self.kind, self.last = kind, now
        self.values: deque[float] = deque(maxlen=SIDE)
        self.usual = usual
        """The kind's level before the visit; None if unknown, or counted."""


class Pair:
    """The latest differences of two kinds, the larger kind minus the smaller, with their weights."""

    __slots__ = ("found",)

    def __init__(self) -> None:
        self.found: deque[tuple[float, float]] = deque(maxlen=KEPT)

    def summary(self, noise: float) -> tuple[float, float, int]:
        """Return the weighted median, its standard deviation and the number of differences.

        *noise*, the deviation of any pair's differences, counts like two of this pair's own.
        """
        ordered = sorted(self.found)
        total, reached, at = sum(weight for _, weight in ordered), 0.0, 0
        while reached + ordered[at][1] < 0.5 * total - 1e-9:
            reached, at = reached + ordered[at][1], at + 1
        middle = ordered[at][0]
        if abs(reached + ordered[at][1] - 0.5 * total) <= 1e-9:  # between two
            middle = 0.5 * (middle + ordered[at + 1][0])
        away = _DEVIATION * median(abs(value - middle) for value, _ in ordered)
        spread = (2.0 * noise + away * total) / (2.0 + total)
        return middle, max(1.25 * spread / math.sqrt(total), max(LONE, LONE_NOISES * noise) / total), len(ordered)

    def close(self, noise: Noise) -> None:
        """Compare the latest difference, which is complete, with the earlier ones."""
        values = [value for value, _ in self.found]
        if len(values) > 1:
            noise.add_difference(values[-1] - median(values[:-1]))
        if len(values) > 3:
            usual = median(values[:-2])
            if abs(values[-1] - values[-2]) < 0.5 * CHANGED < CHANGED < min(abs(v - usual) for v in values[-2:]):
                self.found = deque(list(self.found)[-2:], maxlen=KEPT)


class Comparison:
    """The difference between a visit and the one before it; it changes until the visit has SIDE readings."""

    def __init__(self, pair: Pair, before: Visit, after: Visit, other: Comparison | None) -> None:
        """*other* is the difference at the other end of *before*, a short visit: both count as one."""
        self.pair, self.before, self.after = pair, before, after
        self.other: float | None = None if other is None else other.value
        self.value: float | None = self.other

    def update(self) -> None:
        """Compute the difference from the readings so far; only an export and the next visit need it."""
        before, after = self.before, self.after
        more = middle(after.values) - middle(before.values)
        value, weight = more if after.kind > before.kind else -more, 1.0
        if min(len(before.values), len(after.values)) == 1:
            weight = SINGLE
        if self.other is not None:
            weight /= 1.0 + ((self.other - value) / APART) ** 2
            value = 0.5 * (self.other + value)
        if self.value is not None:
            self.pair.found.pop()
        self.pair.found.append((value, weight))
        self.value = value


class Place:
    """The readings at one anchor batch size."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise
        self._visit: Visit | None = None
        self._comparison: Comparison | None = None
        self._own: dict[int, deque[float]] = {}
        self._counts: dict[int, int] = {}
        self._pairs: dict[tuple[int, int], Pair] = {}
        self._exported: list[Any] | None = None

    def add(self, kind: int, value: float, now: int, rounds: int) -> None:
        """Add a reading, of *rounds* rounds, in round *now*."""
        visit = self._visit
        if visit is None or visit.kind != kind or now - visit.last > NEAR_ROUNDS:
            visit = self._begin(kind, now)
        visit.values.append(value)
        visit.last, self._exported = now, None
        if self._comparison is not None and len(visit.values) == SIDE:
            self._close()
        if visit.usual is not None and 2 * len(visit.values) > SIDE:
            self._noise.add_level(middle(visit.values) - visit.usual)
            visit.usual = None
        self._own.setdefault(kind, deque(maxlen=OWN_KEPT)).append(value)
        self._counts[kind] = self._counts.get(kind, 0) + rounds

    def export(self) -> list[Any]:
        """Return as builtins what ``CostModel.load`` needs.

        That is the latest kind and its level, [kind, level, deviation, readings] of each kind and [kind, kind,
        difference, deviation, differences] of each pair.
        """
        if self._exported is not None:
            return self._exported
        assert self._visit is not None, "a place has a reading"
        noise = self._noise
        if self._comparison is not None:
            self._comparison.update()
        latest = self._visit.kind
        own = [
            [kind, median(values), math.hypot(noise.of_levels, FEW / len(values)), self._counts[kind]]
            for kind, values in self._own.items()
        ]
        pairs = [[*kinds, *pair.summary(noise.of_differences)] for kinds, pair in self._pairs.items() if pair.found]
        self._exported = [latest, self._level(latest), own, pairs]
        return self._exported

    def _level(self, kind: int) -> float:
        return median(list(self._own[kind])[-SIDE:])

    def _begin(self, kind: int, now: int) -> Visit:
        before, last = self._visit, self._comparison
        known = 2 * len(self._own.get(kind, ())) > SIDE
        visit = self._visit = Visit(kind, now, self._level(kind) if known else None)
        near = before is not None and before.kind != kind and now - before.last <= NEAR_ROUNDS
        back = last if near and last is not None and last.before.kind == kind and last.other is None else None
        if back is None:
            self._close()
        else:
            back.update()
        self._comparison = None
        if near and before is not None:
            low, high = sorted((before.kind, kind))
            pair = self._pairs.setdefault((low, high), Pair())
            self._comparison = Comparison(pair, before, visit, back)
        return visit

    def _close(self) -> None:
        if self._comparison is not None:
            self._comparison.update()
            self._comparison.pair.close(self._noise)
            self._comparison = None


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
        self._at(anchor).add(kind, math.log(seconds) - base, self._round, rounds)

    def export(self) -> dict[str, Any]:
        """Return everything as builtins, as ``CostModel.load`` takes it."""
        places = [[anchor, *place.export()] for anchor, place in self._places.items()]
        return {"noise": self._noise.of_differences, "places": places}

    def _leave_zero(self) -> None:
        """End the zero-step rounds; an incomplete cycle counts as one reading, which lacks the draft extend."""
        part = self._cycle.part()
        if part is not None and self._zero is not None:
            anchor, base = self._zero
            self._at(anchor).add(0, math.log(part) - base, self._round, 1)
        self._zero = None
        self._cycle.begin()

    def _at(self, anchor: int) -> Place:
        found = self._places.get(anchor)
        if found is None:
            found = self._places[anchor] = Place(self._noise)
        return found


def middle(logs: Collection[float]) -> float:
    """Return the median of *logs*; of two, the log of the mean of what they are the logs of."""
    return math.log(0.5 * sum(map(math.exp, logs))) if len(logs) == 2 else median(logs)
