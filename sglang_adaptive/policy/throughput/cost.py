"""T(batch, steps): seconds of a round, from a profile and from this server's measurements.

    ln T(n, s) = ln base(n, s) + g + theta(n, s)

The base is a profile's cells, completed by a parametric form. The slowdown ``g``, common to all rounds, cancels when
two depths are compared. Measured cells have log-ratios ``e_c`` to the base. An unmeasured cell, with ``i`` the index in
the ladder, gets

    guess(n, s) = m + sum_c k_c * (e_c - m) / (PULL + sum_c k_c)       m: mean of all e_c, pulled to 0
    k_c = exp(-|log2(n / n_c)| - |i - i_c| / 2)

A measured cell is averaged with its guess by precision, and no time is below that of fewer steps (``ascending``).

A round of ``k`` lookups verifies as many tokens as ``n * (k + 1)`` requests at zero steps, and runs the draft once:

    T(n, lookups k) = T(n * (k + 1), 0) + draft(n)

At batch 1 an additional step costs little more than its draft, so ``draft(1)`` is the mean step there. On an H200 a
drafted step of three shapes takes 1.2 to 1.4 times as long for 64 requests.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_adaptive.policy.profile import CostProfile

ANCHORS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Batch sizes at which times are kept, besides a profile's; times between them are interpolated. SGLang captures graphs
at most of these."""
MAX_ANCHORS = 64
"""Limit of the table, whatever a profile holds."""
FIXED = 0.005
"""Seconds of the form's fixed part: a guess that no decision depends on."""
PER_STEP, PER_TOKEN = 0.037, 0.00276
"""Cost of a draft step and of a token to verify, relative to the fixed part."""
PROFILED, GUESSED = 0.02, 0.15
"""Relative standard deviation of a time: profiled or between profiled batch sizes, and otherwise. Profiles of one setup
differ by 2%, the form is off by 12% at worst."""
DRAFT_GROWTH = 1.0 / 200.0
"""Relative increase in the time of a drafted step per additional request."""
PULL = 8.0
"""Weight of the base table in measured cells: eight neighbors pass on half of their error. With 4, the worst trace
under a profile that is off by 15% loses 1% more (simulated)."""
READING, LONE = 0.025, 0.08
"""Relative standard deviation of one reading, and of fewer than three of them: one may be an outlier."""
CELL = 0.005
"""Relative standard deviation that a cell keeps, however many readings it has."""
NOTICED = 0.002
"""Smaller changes of a cell (log) do not change the table."""
MEASURED, PROFILE, INTERPOLATED, PRIOR = "measured", "profile", "interpolated", "prior"
"""Sources of a time."""
MOST_ROWS = 512
"""Rows kept: more than a server has batch sizes."""


def form_seconds(batch_size: int, steps: int) -> float:
    """Return the seconds of a round of *batch_size* requests at *steps*, to use where nothing was measured.

    A round has a fixed cost, each draft step runs the draft model once, and verification grows with the tokens that the
    target processes. The ratios are a least-squares fit to a table measured on an H200 (Llama-3.1-8B shape, EAGLE-3,
    relative error 4% in the mean, 12% at worst).
    """
    return FIXED * (1.0 + PER_STEP * steps + PER_TOKEN * batch_size * (steps + 1))


class BaseCost:
    """Seconds and relative standard deviations before any measurement, by batch size and candidate steps."""

    def __init__(self, ladder: Sequence[int], profile: CostProfile | None) -> None:
        self.ladder = tuple(ladder)
        known: dict[int, dict[int, float]] = {}
        for cell in () if profile is None else profile.cells:
            known.setdefault(cell.batch_size, {})[cell.steps] = cell.seconds
        self.profiled = frozenset((batch, steps) for batch, row in known.items() for steps in row)
        """Batch sizes and steps taken directly from the profile."""
        extra = [batch for batch in sorted(known) if batch not in ANCHORS][: MAX_ANCHORS - len(ANCHORS)]
        self.anchors = tuple(sorted({*ANCHORS, *extra}))
        self._rows = {batch: [_in_row(batch, row, steps) for steps in ladder] for batch, row in known.items()}
        self._deviations = {
            batch: [PROFILED if steps in row else GUESSED for steps in ladder] for batch, row in known.items()
        }
        self._drafted_step = drafted_step(ladder, self.seconds(1))

    def seconds(self, batch_size: int) -> list[float]:
        """Return seconds by ladder index: linear between profiled batch sizes, scaled by the form outside them."""
        around = _around(batch_size, self._rows)
        if around is None:
            return [form_seconds(batch_size, steps) for steps in self.ladder]
        below, above, part = around
        if below == above:
            edge = zip(self._rows[below], self.ladder, strict=True)
            return [t * form_seconds(batch_size, steps) / form_seconds(below, steps) for t, steps in edge]
        return [a + (b - a) * part for a, b in zip(self._rows[below], self._rows[above], strict=True)]

    def deviations(self, batch_size: int) -> list[float]:
        """Return relative standard deviations of :meth:`seconds`."""
        around = _around(batch_size, self._deviations)
        if around is None:
            return [GUESSED] * len(self.ladder)
        below, above, _ = around
        least = GUESSED if below == above != batch_size else 0.0
        return [max(least, *pair) for pair in zip(self._deviations[below], self._deviations[above], strict=True)]

    def lookup_seconds(self, batch_size: int, drafts: int) -> float:
        """Return the seconds of a round that looks up *drafts* per request."""
        fewest = self.ladder[0]
        # Without zero steps: as many tokens in a round of the fewest steps.
        verified = self.seconds(-(-batch_size * (drafts + 1) // (fewest + 1)))[0]
        return verified + self._drafted_step * (1.0 + DRAFT_GROWTH * (batch_size - 1))


def drafted_step(ladder: Sequence[int], alone: Sequence[float]) -> float:
    """Return the seconds of a drafted step at batch 1; *alone* has the round times there by ladder index."""
    first = next(at for at, steps in enumerate(ladder) if steps)
    steps = ladder[-1] - ladder[first]
    return (alone[-1] - alone[first]) / steps if steps else 0.0


class CostModel:
    """The table that decisions use; only :meth:`load` changes it."""

    def __init__(self, ladder: Sequence[int], profile: CostProfile | None) -> None:
        self.base = BaseCost(ladder, profile)
        self.ladder = tuple(ladder)
        self._rung = {steps: rung for rung, steps in enumerate(ladder)}
        self._measured: dict[tuple[int, int], tuple[float, float]] = {}
        """By anchor and steps, or drafts looked up: log-ratio to the base, and its relative standard deviation."""
        self.readings: Mapping[tuple[int, int], float] = {}
        """By anchor and steps of measured rounds without lookups, the readings behind them."""
        self._timed: Sequence[tuple[int, int, float, float]] = ()
        """Rounds without lookups: anchor, ladder index, log-ratio and deviation."""
        self._mean = self._mean_of_lookups = 0.0
        self._scale = 1.0
        """Actual over expected deviation of measured cells from the base."""

    def load(self, drift: float, cells: Sequence[Sequence[float]]) -> bool:
        """Replace the measurements; return whether any time changed.

        *drift* is the current common slowdown (log). A cell is (anchor, steps or drafts looked up, log-ratio to the
        base without slowdown, readings behind it). No probe would correct a single slow reading of a lookup round, so
        one counts from three readings on.
        """
        measured: dict[tuple[int, int], tuple[float, float]] = {}
        for anchor, steps, ratio, readings in cells:
            if steps not in self._rung and readings < 3:
                continue
            deviation = math.hypot(LONE if readings < 3 else READING / math.sqrt(readings), CELL)
            measured[int(anchor), int(steps)] = ratio + drift, deviation
        self.readings = {(int(at), int(steps)): count for at, steps, _, count in cells if steps in self._rung}
        if _alike(measured, self._measured):
            return False
        self._measured = measured
        self._timed = [(at, self._rung[s], *cell) for (at, s), cell in measured.items() if s in self._rung]
        sure = [(anchor, rung, ratio) for anchor, rung, ratio, deviation in self._timed if deviation < LONE]
        of_lookups = [ratio for (_, steps), (ratio, _) in measured.items() if steps not in self._rung]
        self._mean = mean = sum(ratio for *_, ratio in sure) / (len(sure) + PULL)
        squares = sum(((ratio - mean) / self.base.deviations(anchor)[rung]) ** 2 for anchor, rung, ratio in sure)
        self._scale = math.sqrt((1.0 + squares) / (1.0 + len(sure)))
        self._mean_of_lookups = sum(of_lookups) / len(of_lookups) if of_lookups else mean
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

    def _row(self, batch_size: int) -> tuple[list[float], list[float]]:
        near = [
            (rung, math.exp(-abs(math.log2(batch_size / anchor))), ratio - self._mean)
            for anchor, rung, ratio, deviation in self._timed
            if deviation < LONE
        ]
        seconds, deviations = [], []
        base = zip(self.ladder, self.base.seconds(batch_size), self.base.deviations(batch_size), strict=True)
        for rung, (steps, start, deviation) in enumerate(base):
            weights = [weight * math.exp(-abs(rung - other) / 2.0) for other, weight, _ in near]
            mass = PULL + sum(weights)
            guess = self._mean + sum(w * error for w, (_, _, error) in zip(weights, near, strict=True)) / mass
            deviation *= self._scale
            own = self._measured.get((batch_size, steps))
            if own is not None:
                part = deviation**2 / (deviation**2 + own[1] ** 2)
                guess += part * (own[0] - guess)
                deviation = own[1] * math.sqrt(part)
            seconds.append(start * math.exp(guess))
            deviations.append(deviation)
        return ascending(seconds, [1.0 / deviation**2 for deviation in deviations]), deviations

    def lookup(self, batch_size: int, drafts: int) -> tuple[float, float]:
        """Return the seconds of a round that looks up *drafts* per request, and the base's seconds."""
        base = self.base.lookup_seconds(batch_size, drafts)
        guess = base * math.exp(self._mean_of_lookups)
        own = self._measured.get((self.anchor(batch_size), drafts))
        if own is None:
            return guess, base
        deviation = GUESSED * self._scale
        part = deviation**2 / (deviation**2 + own[1] ** 2)
        return guess * (base * math.exp(own[0]) / guess) ** part, base

    def anchor(self, batch_size: int) -> int:
        """Return the anchor for readings at *batch_size*: the one nearer in ratio."""
        anchors = self.base.anchors
        at = bisect_left(anchors, batch_size)
        low, high = anchors[max(0, at - 1)], anchors[min(at, len(anchors) - 1)]
        return low if batch_size * batch_size <= low * high else high

    def source(self, batch_size: int, steps: int) -> str:
        """Return the source of the time of a round of *steps* at this batch size."""
        if (self.anchor(batch_size), steps) in self._measured:
            return MEASURED
        if (batch_size, steps) in self.base.profiled:
            return PROFILE
        return INTERPOLATED if self._timed or self.base.profiled else PRIOR

    def as_dict(self, batch_size: int) -> dict[str, Any]:
        """Return times and sources by anchor and depth, up to one anchor past *batch_size* and all known ones."""
        anchors = self.base.anchors
        known = max((batch for batch, *_ in (*self.base.profiled, *self._timed)), default=1)
        shown = anchors[: bisect_left(anchors, max(known, batch_size)) + 2]
        return {
            "batch_sizes": list(shown),
            "steps": list(self.ladder),
            "seconds": [self.row(anchor)[0] for anchor in shown],
            "source": [[self.source(anchor, steps) for steps in self.ladder] for anchor in shown],
        }


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
    log_base: Mapping[int, float]
    """Log of the base table's seconds, the reference for readings, by steps or drafts looked up."""
    zero: float | None
    """Seconds at zero steps; None if they may not run here."""
    lookups: Mapping[int, float]
    """Seconds of the lookup rounds that may run here, by drafts, ascending."""


class RoundTimeTable:
    """Rows by batch size, cached until times change, in bounded memory."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._lookups: tuple[Sequence[int], int] = (), 0
        self._rows: dict[int, RoundTimeRow] = {}
        self._graph_sizes: list[int] = []
        self._captured: Mapping[int, frozenset[int]] = {}

    @property
    def graph_sizes(self) -> Sequence[int]:
        """Batch sizes with CUDA graphs, ascending; empty when graphs are off."""
        return self._graph_sizes

    def at(self, batch_size: int) -> RoundTimeRow:
        """Return the row of *batch_size*, padded to the next size with CUDA graphs."""
        padded = self._padded(max(1, batch_size))
        found = self._rows.get(padded)
        if found is None:
            if len(self._rows) >= MOST_ROWS:
                self._rows.clear()
            found = self._rows[padded] = self._make(padded)
        return found

    def set_graph_sizes(self, sizes: Sequence[int]) -> None:
        """Set the batch sizes that have CUDA graphs."""
        self._graph_sizes = sorted(sizes)
        self._rows.clear()

    def set_captured(self, captured: Mapping[int, frozenset[int]]) -> None:
        """Set which steps have graphs at a batch size, if they were captured before the policy was created."""
        self._captured = captured
        self._rows.clear()

    def allowed(self, batch_size: int) -> tuple[int, ...]:
        """Return the steps that may run at *batch_size*: all, or those with graphs if captured for another policy."""
        captured = self._captured.get(batch_size, self._cost.ladder)
        return tuple(steps for steps in self._cost.ladder if steps in captured)

    def allow_lookups(self, drafts: Sequence[int], requests: int) -> None:
        """Set the draft counts that rounds of at most *requests* may look up; empty for none."""
        self._lookups = drafts, requests
        self._rows.clear()

    def lookups(self, batch_size: int) -> tuple[int, ...]:
        """Return the draft counts that a round of *batch_size* may look up."""
        drafts, requests = self._lookups
        captured = self._captured.get(batch_size, drafts)
        return tuple(count for count in drafts if batch_size <= requests and count in captured)

    def forget(self) -> None:
        """Drop all rows, because times have changed."""
        self._rows.clear()

    def _make(self, batch_size: int) -> RoundTimeRow:
        ladder, anchor = self._cost.ladder, self._cost.anchor(batch_size)
        seconds, deviations = self._cost.row(batch_size)
        base = self._cost.base.seconds(batch_size)
        allowed = frozenset(self.allowed(batch_size))
        log_base = {steps: math.log(t) for steps, t in zip(ladder, base, strict=True)}
        lookups = {}
        for drafts in self.lookups(batch_size):
            lookups[drafts], start = self._cost.lookup(batch_size, drafts)
            log_base[drafts] = math.log(start)
        return RoundTimeRow(
            padded=batch_size,
            anchor=anchor,
            rungs=tuple((i, s, seconds[i]) for i, s in enumerate(ladder) if s in allowed),
            allowed=allowed,
            seconds=dict(zip(ladder, seconds, strict=True)),
            deviation=dict(zip(ladder, deviations, strict=True)),
            log_base=log_base,
            zero=seconds[0] if 0 in allowed else None,
            lookups=lookups,
        )

    def _padded(self, batch_size: int) -> int:
        at = bisect_left(self._graph_sizes, batch_size)
        return self._graph_sizes[at] if at < len(self._graph_sizes) else batch_size


def _around(at: int, known: Mapping[int, Any]) -> tuple[int, int, float] | None:
    """Return the keys of *known* around *at*, an edge twice, and the fraction between them; None without keys."""
    if not known:
        return None
    keys = sorted(known)
    index = bisect_left(keys, at)
    if index == len(keys) or keys[index] == at or index == 0:
        edge = keys[min(index, len(keys) - 1)]
        return edge, edge, 0.0
    below, above = keys[index - 1], keys[index]
    return below, above, (at - below) / (above - below)


def _in_row(batch: int, row: Mapping[int, float], steps: int) -> float:
    """Return the time at *steps* from the known steps of the same batch size."""
    around = _around(steps, row)
    assert around is not None, "a row has a cell"
    below, above, part = around
    if below == above:
        return row[below] * form_seconds(batch, steps) / form_seconds(batch, below)
    return row[below] + (row[above] - row[below]) * part


def _alike(new: Mapping[Any, tuple[float, float]], old: Mapping[Any, tuple[float, float]]) -> bool:
    """Whether both have the same cells, none of which differs by ``NOTICED`` or more."""
    return new.keys() == old.keys() and all(
        abs(one - other) < NOTICED for at, cell in new.items() for one, other in zip(cell, old[at], strict=True)
    )
