"""Seconds of a round at a batch size: those of ``base_cost`` times exp(x), with x from this server's measurements.

Where rounds were timed, ``x`` is fitted to what they showed and to the shape that other batch sizes suggest (``fit``).
Elsewhere it is that shape, around the level of the nearest batch sizes. With ``m`` a level and ``i`` an index of steps,

    g(n, s) = sum_c k_c * (x_c - m_c) / (PULL + sum_c k_c)     over cells c of other anchors, the batch sizes with times
    k_c = exp(-|log2(n / n_c)| - |i - i_c| / 2)
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from sglang_adaptive.policy.profile import CostProfile, ProfileCell
from sglang_adaptive.policy.throughput.base_cost import BaseCost, nearness
from sglang_adaptive.policy.throughput.fit import LITTLE, Evidence, Fit, fit
from sglang_adaptive.policy.throughput.readings import CHANGED

PULL = 4.0
"""Cells for which the base table counts: in the shape, where so many neighbors pass on half of their error, and in how
accurate it is. In the shape alone, 8 and 16 do as well."""
SURE = 0.5 * CHANGED
"""Largest deviation of a time that others are guessed from. Without this, a busy host has 0.007 less."""
CONFIRMED = 3
"""Readings that a lookup round's time and each side of a comparison of tracking need: one late one ends no lookups."""
NOTICED = 0.01
"""Smaller changes of a level (log) do not change the table, and no time is known better: without this, one of ten drawn
machines that change stays at 0.93. With 0.002 a hand-over takes 560 us instead of 90, and with a quarter of the noise a
busy host has 0.002 less (recorded noise)."""
MEASURED, PROFILE, INTERPOLATED, PRIOR = "measured", "profile", "interpolated", "prior"
"""Sources of a time."""


class CostModel:
    """The table that decisions use; only :meth:`load` changes it."""

    def __init__(self, ladder: Sequence[int], profile: CostProfile | None) -> None:
        self.base = BaseCost(ladder, profile)
        self.ladder = tuple(ladder)
        self.readings: Mapping[tuple[int, int], int] = {}
        """By anchor and kind, the readings behind it."""
        self.noise = 0.0
        """Standard deviation of a difference between two kinds."""
        self.surprise = 1.0
        """Actual over expected deviation of measured times from the base."""
        self._evidence: dict[int, Evidence] = {}
        self._now: dict[int, float] = {}
        """By anchor, the level of the kind that ran last."""
        self._fits: dict[int, Fit] = {}
        """By anchor, of the kinds that ran, from its own evidence alone."""
        self._wholes: dict[int, Fit] = {}
        """By anchor, of all steps; made when needed."""

    def load(self, noise: float, places: Sequence[Sequence[Any]]) -> bool:
        """Replace the measurements by an export of ``Readings``; return whether any time changed."""
        self.noise = noise
        self.readings = {(anchor, kind): count for anchor, _, _, own, _ in places for kind, _, _, count in own}
        now = {anchor: level for anchor, _, level, *_ in places}
        told = {anchor: Evidence(latest, own, pairs) for anchor, latest, _, own, pairs in places}
        new = {anchor: one for anchor, one in told.items() if not one.like(self._evidence.get(anchor), NOTICED)}
        if not new and all(abs(level - self._now[anchor]) < NOTICED for anchor, level in now.items()):
            return False
        self._now = now
        if new:
            self._evidence |= new
            self._fits |= {anchor: self._fit(evidence, {}) for anchor, evidence in new.items()}
            self._wholes = {}
            self.surprise = self._surprise()
        return True

    def row(self, batch_size: int) -> tuple[list[float], list[float], list[float]]:
        """Return seconds, their relative standard deviations and the base's seconds by ladder index.

        They are those of the anchor that counts its readings, scaled by the form. Means of two anchors hid what was
        measured behind a wrong profile of the other one: 3 steps of 60 requests took 1.34 instead of 1.10 times as long
        as 2 (recorded), and 24 of 90 drawn profiles instead of 1 kept the policy below 0.98 of the best depth.
        """
        anchor = self.anchor(batch_size)
        if anchor in self._evidence:
            whole = self._wholes.get(anchor)
            if whole is None:
                whole = self._wholes[anchor] = self._fit(self._evidence[anchor], self._shape(anchor))
            ratios = [self._now[anchor] + whole.ratio[steps] for steps in self.ladder]
            deviations = [max(NOTICED, whole.deviation[steps]) for steps in self.ladder]
        else:
            shape, level = self._shape(anchor), self._level(anchor)
            ratios = [level + shape[steps][0] for steps in self.ladder]
            deviations = [shape[steps][1] for steps in self.ladder]
        base = self.base.seconds(anchor)
        seconds = [start * math.exp(ratio) for start, ratio in zip(base, ratios, strict=True)]
        # Times measured here decide the order: averaged with a profile four times too long, one of them hid the best
        # depth for 2,800 rounds (and `profile-15` has 0.970 instead of 0.974).
        own = [not self.base.profiled or (anchor, steps) in self.readings for steps in self.ladder]
        weights = [(1.0 if its else LITTLE) / error**2 for its, error in zip(own, deviations, strict=True)]
        seconds = ascending(seconds, weights)
        seconds, base = (self.base.scaled(times, anchor, batch_size) for times in (seconds, base))
        return seconds, deviations, base

    def lookup(self, batch_size: int, drafts: int) -> tuple[float, float]:
        """Return the seconds of a round that looks up *drafts* per request, and the base's seconds."""
        base, anchor = self.base.lookup_seconds(batch_size, drafts), self.anchor(batch_size)
        if anchor not in self._fits:
            return base, base
        ratios = dict(self._fits[anchor].ratio)
        if self.readings.get((anchor, drafts), 0) < CONFIRMED and len(ratios) > 1:
            ratios.pop(drafts, None)
        return base * math.exp(self._now[anchor] + ratios.get(drafts, median(ratios.values()))), base

    def lone(self, anchor: int) -> list[tuple[int, int, float]]:
        """Return the latest differences at *anchor* that no other one agrees with.

        That is two numbers of steps, and the log of the time of the second over that of the first.
        """
        if anchor not in self._evidence:
            return []
        base = dict(zip(self.ladder, self.base.seconds(anchor), strict=True))
        return [
            (one, other, latest + math.log(base[other] / base[one]))
            for one, other, usual, _, count, latest in self._evidence[anchor].pairs
            if (count == 1 or abs(latest - usual) > CHANGED) and {one, other} <= base.keys()
        ]

    def cells(self) -> list[ProfileCell]:
        """Return the measured times of steps, at the anchors."""
        found = []
        for anchor, own in sorted(self._fits.items()):
            base = dict(zip(self.ladder, self.base.seconds(anchor), strict=True))
            found += [
                ProfileCell(anchor, steps, start * math.exp(self._now[anchor] + own.ratio[steps]), readings)
                for steps, start in base.items()
                if (readings := self.readings.get((anchor, steps)))
            ]
        return found

    def anchor(self, batch_size: int) -> int:
        """Return the anchor for readings at *batch_size*: the one nearer in ratio."""
        anchors = self.base.anchors
        at = bisect_left(anchors, batch_size)
        low, high = anchors[max(0, at - 1)], anchors[min(at, len(anchors) - 1)]
        return low if batch_size * batch_size <= low * high else high

    def source(self, batch_size: int, steps: int) -> str:
        """Return the source of the time of a round of *steps* at this batch size."""
        if (self.anchor(batch_size), steps) in self.readings:
            return MEASURED
        if (batch_size, steps) in self.base.profiled:
            return PROFILE
        return INTERPOLATED if self._evidence or self.base.profiled else PRIOR

    def as_dict(self, batch_size: int) -> dict[str, Any]:
        """Return times and sources by anchor and depth, up to one anchor past *batch_size* and all known ones."""
        anchors = self.base.anchors
        known = max((batch for batch, *_ in (*self.base.profiled, *self.readings)), default=1)
        shown = anchors[: bisect_left(anchors, max(known, batch_size)) + 2]
        return {
            "batch_sizes": list(shown),
            "steps": list(self.ladder),
            "seconds": [self.row(anchor)[0] for anchor in shown],
            "source": [[self.source(anchor, steps) for steps in self.ladder] for anchor in shown],
        }

    def _fit(self, evidence: Evidence, shape: Mapping[int, tuple[float, float]]) -> Fit:
        return fit(evidence, shape, from_base=bool(self.base.profiled))

    def _level(self, batch_size: int) -> float:
        """Return the level that the anchors around suggest, the nearest ones the most."""
        weights = {anchor: nearness(batch_size, anchor) for anchor in self._fits}
        levels = (weight * (self._now[at] + median(self._fits[at].ratio.values())) for at, weight in weights.items())
        return sum(levels) / sum(weights.values()) if weights else 0.0

    def _shape(self, batch_size: int) -> dict[int, tuple[float, float]]:
        """Return by steps the distance from the level (log) that others suggest, and its standard deviation."""
        others = {at: math.exp(-abs(math.log2(batch_size / at))) for at in self._fits if at != batch_size}
        known = [(rung, weight, error) for anchor, weight in others.items() for rung, error, _ in self._known(anchor)]
        shape = {}
        for rung, (steps, deviation) in enumerate(zip(self.ladder, self.base.deviations(batch_size), strict=True)):
            near = [(weight * math.exp(-abs(rung - other) / 2.0), error) for other, weight, error in known]
            away = sum(weight * error for weight, error in near)
            shape[steps] = away / (PULL + sum(weight for weight, _ in near)), self.surprise * deviation
        return shape

    def _known(self, anchor: int) -> list[tuple[int, float, float]]:
        """Return ladder index, distance from the anchor's level and deviation of the times that are known well."""
        own = self._fits[anchor]
        level = median(own.ratio.values())
        return [
            (rung, own.ratio[steps] - level, own.deviation[steps])
            for rung, steps in enumerate(self.ladder)
            if len(own.ratio) > 1 and own.deviation.get(steps, 1.0) < SURE
        ]

    def _surprise(self) -> float:
        squares = count = 0.0
        for anchor in self._fits:
            expected = self.base.deviations(anchor)
            for rung, error, deviation in self._known(anchor):
                squares += error**2 / (expected[rung] ** 2 + deviation**2)
                count += 1.0
        return math.sqrt((PULL + squares) / (PULL + count))


def ascending(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the ascending weighted least-squares fit to *values*: pool adjacent violators (Barlow 1972)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, mass, count = value, weight, 1
        while pools and pools[-1][0] > mean:
            before, more, others = pools.pop()
            mean, mass, count = (mean * mass + before * more) / (mass + more), mass + more, count + others
        pools.append((mean, mass, count))
    return [mean for mean, _, count in pools for _ in range(count)]
