"""T(batch, steps): seconds of a round, from the base table and what this server measured.

    ln T(n, s) = ln base(n, s) + g + theta(n, s)

A slowdown ``g`` that all rounds share cancels wherever two depths are compared. Between a cell that was measured, with
log-ratio ``e_c`` to the base, and one that was not, ``i`` being the index in the ladder,

    guess(n, s) = m + sum_c k_c * (e_c - m) / (PULL + sum_c k_c)       m: mean of all e_c, drawn to 0
    k_c = exp(-|log2(n / n_c)| - |i - i_c| / 2)

A measured cell is averaged with its guess by precision, and no time is below that of fewer steps (``ascending``).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from sglang_adaptive.policy.profile.profile import CostProfile
from sglang_adaptive.policy.throughput.cost.ascending import ascending
from sglang_adaptive.policy.throughput.cost.base import PROFILED, BaseCost
from sglang_adaptive.policy.throughput.cost.pairs import DOUBT

PULL = 8.0
"""Measured cells that the base table counts for: half of an error is taken over from eight neighbours. With 4 the worst
trace under a profile that is off by 15% loses 1% more (simulated)."""
READING, LONE = 0.025, 0.08
"""Relative standard deviation of one reading, and of fewer than three of them: one may be an outlier."""
CELL = 0.005
"""Relative standard deviation of a cell, however many readings it has."""
NOTICED = 0.002
"""Smaller changes of a cell (log) are not worth a new table."""
MEASURED, PROFILE, INTERPOLATED, PRIOR = "measured", "profile", "interpolated", "prior"


class CostModel:
    """The table that decisions are made on; it changes in :meth:`load` only."""

    def __init__(self, ladder: Sequence[int], profile: CostProfile | None) -> None:
        self.base = BaseCost(ladder, profile)
        self.ladder = tuple(ladder)
        self.known: dict[tuple[int, int], tuple[float, float]] = {}
        """Measured cells by anchor and ladder index: log-ratio to the base, and its relative standard deviation."""
        self.pairs: dict[tuple[int, int, int], tuple[float, float]] = {}
        """The same by anchor, steps and budget, of rounds with a budget."""
        self._mean = 0.0
        self._scale = 1.0
        """How far measured cells lie from the base, against how far they were expected to."""

    def load(self, drift: float, cells: Sequence[Sequence[float]]) -> bool:
        """Replace what was measured; return whether any time changed by it.

        *drift* is the common slowdown now (log); a cell is (anchor, steps, log-ratio to the base without slowdown,
        readings behind it).
        """
        rungs = {steps: rung for rung, steps in enumerate(self.ladder)}
        known: dict[tuple[int, int], tuple[float, float]] = {}
        pairs: dict[tuple[int, int, int], tuple[float, float]] = {}
        for anchor, steps, budget, ratio, readings in cells:
            deviation = math.hypot(LONE if readings < 3 else READING / math.sqrt(readings), CELL)
            if budget < steps:
                pairs[int(anchor), int(steps), int(budget)] = ratio + drift, deviation
            else:
                known[int(anchor), rungs[int(steps)]] = ratio + drift, deviation
        if _alike(known, self.known) and _alike(pairs, self.pairs):
            return False
        self.known, self.pairs = known, pairs
        sure = [(ratio, *at) for at, (ratio, deviation) in known.items() if deviation < LONE]
        self._mean = mean = sum(ratio for ratio, *_ in sure) / (len(sure) + PULL)
        squares = sum(((ratio - mean) / self.base.deviations(anchor)[rung]) ** 2 for ratio, anchor, rung in sure)
        self._scale = math.sqrt((1.0 + squares) / (1.0 + len(sure)))
        return True

    def row(self, batch_size: int) -> tuple[list[float], list[float]]:
        """Return seconds and their relative standard deviations by ladder index at *batch_size* >= 1."""
        anchors = self.base.anchors
        at = bisect_left(anchors, batch_size)
        if at == len(anchors) or anchors[at] == batch_size:
            return self._row(batch_size)
        (low, surer), (high, other) = self._row(anchors[at - 1]), self._row(anchors[at])
        part = (batch_size - anchors[at - 1]) / (anchors[at] - anchors[at - 1])
        seconds = [(1.0 - part) * first + part * second for first, second in zip(low, high, strict=True)]
        return seconds, [max(pair) for pair in zip(surer, other, strict=True)]

    def pair(
        self, batch_size: int, steps: int, budget: int, row: tuple[list[float], list[float]], plain: Sequence[float]
    ) -> tuple[float, float, float]:
        """Return seconds of a round with a budget, their relative standard deviation, and the base's seconds.

        *row* is that of the batch, and *plain* its base. Until it was measured the round is off from its base as much
        as one of *budget* steps is.
        """
        base, profiled = self.base.pair_seconds(batch_size, steps, budget, plain)
        rung = self.ladder.index(budget)
        guess = base * row[0][rung] / plain[rung]
        deviation = math.hypot(row[1][rung], PROFILED if profiled else DOUBT * (1.0 - plain[rung] / base))
        own = self.pairs.get((self.anchor(batch_size), steps, budget))
        if own is None:
            return guess, deviation, base
        part = deviation**2 / (deviation**2 + own[1] ** 2)
        return guess * (base * math.exp(own[0]) / guess) ** part, own[1] * math.sqrt(part), base

    def anchor(self, batch_size: int) -> int:
        """Return the anchor that readings at *batch_size* are filed under: that of the smaller ratio."""
        anchors = self.base.anchors
        at = bisect_left(anchors, batch_size)
        low, high = anchors[max(0, at - 1)], anchors[min(at, len(anchors) - 1)]
        return low if batch_size * batch_size <= low * high else high

    def source(self, batch_size: int, rung: int, budget: int | None = None) -> str:
        """Return where the time at this batch size and ladder index, and with this budget, comes from."""
        anchor = self.anchor(batch_size)
        if budget is not None:
            return MEASURED if (anchor, self.ladder[rung], budget) in self.pairs else INTERPOLATED
        if (anchor, rung) in self.known:
            return MEASURED
        if (batch_size, self.ladder[rung]) in self.base.profiled:
            return PROFILE
        return INTERPOLATED if self.known or self.base.profiled else PRIOR

    def _row(self, batch_size: int) -> tuple[list[float], list[float]]:
        near = [
            (rung, math.exp(-abs(math.log2(batch_size / anchor))), ratio - self._mean)
            for (anchor, rung), (ratio, deviation) in self.known.items()
            if deviation < LONE
        ]
        seconds, deviations = [], []
        base = zip(self.base.seconds(batch_size), self.base.deviations(batch_size), strict=True)
        for rung, (start, deviation) in enumerate(base):
            weights = [weight * math.exp(-abs(rung - other) / 2.0) for other, weight, _ in near]
            mass = PULL + sum(weights)
            guess = self._mean + sum(w * error for w, (_, _, error) in zip(weights, near, strict=True)) / mass
            deviation *= self._scale
            own = self.known.get((batch_size, rung))
            if own is not None:
                part = deviation**2 / (deviation**2 + own[1] ** 2)
                guess += part * (own[0] - guess)
                deviation = own[1] * math.sqrt(part)
            seconds.append(start * math.exp(guess))
            deviations.append(deviation)
        return ascending(seconds, [1.0 / deviation**2 for deviation in deviations]), deviations


def _alike(new: Mapping[Any, tuple[float, float]], old: Mapping[Any, tuple[float, float]]) -> bool:
    """Whether both have the same cells, and none differs by as much as is worth a new table."""
    return new.keys() == old.keys() and all(
        abs(one - other) < NOTICED for at, cell in new.items() for one, other in zip(cell, old[at], strict=True)
    )
