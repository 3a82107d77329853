"""The last hour of rounds by batch region and steps, in bounded memory.

Rounds are counted per second. When a second is over, its rounds are compared with fixed steps and added to three rings:
the last minute by 1 second, the last quarter of an hour by 5 seconds, and the last hour by 20 seconds. Seconds without
a round take no memory. A full history of two batch regions and eight numbers of steps takes about 300 kB, which a test
checks.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from sglang_adaptive.policy.base import AdaptivePolicy, RoundPrices
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.runtime.counters import REGIONS, RoundMix, region_of

SPANS = {60: 1, 900: 5, 3600: 20}
"""Seconds that a ring covers: seconds per bucket."""
HOUR = max(SPANS)
SPEEDUP_SECONDS = 5
"""Seconds for which the hour's sum is reused; computing it takes a fraction of a millisecond."""
REQUESTS, TOKENS, SECONDS = range(3)
HEAD = 3
"""Columns of a row before those by steps: requests, tokens and seconds of the rounds. The columns by steps are rounds,
seconds, seconds at fixed steps, and their deviation."""
Bucket = dict[int, "array[float]"]
"""A row for each batch region, by its index in REGIONS."""


class History:
    """Rounds of the last hour; *clock* is monotonic, in seconds."""

    def __init__(self, depths: Iterable[int], clock: Callable[[], float] = time.monotonic) -> None:
        """*depths* are all steps that rounds may use, ascending."""
        self.depths = tuple(depths)
        self._place = {steps: place for place, steps in enumerate(self.depths)}
        self._clock = clock
        self._second = int(clock())
        """The current second."""
        self._mixes: dict[tuple[int, int, bool], RoundMix] = {}
        self._rings = {span: deque[tuple[int, Bucket]](maxlen=span // period) for span, period in SPANS.items()}
        self._speedups: tuple[int, dict[str, Any] | None] = (-1, None)

    def add(self, observation: RoundObservation) -> None:
        """Count a round in the current second; call :meth:`close` first."""
        key = (observation.batch_size, observation.steps, observation.chosen)
        mix = self._mixes.get(key)
        if mix is None:
            mix = self._mixes[key] = RoundMix(*key)
        mix.add(observation)

    def close(self, policy: AdaptivePolicy) -> None:
        """Compare a finished second with fixed steps, by the prices of *policy*, and add it to the rings."""
        now = int(self._clock())
        if now == self._second:
            return
        second, self._second = self._second, now
        if self._mixes:
            mixes, self._mixes = self._mixes, {}
            self._file(second, self._rows(mixes.values(), policy))

    def speedup(self) -> dict[str, Any] | None:
        """Return the speedup of the last hour over fixed steps; None if no round had a modeled time.

        A dict with ``seconds``, from the first to the last of these rounds, and ``against``: for each number of fixed
        steps ``steps``, ``times`` (the speedup) and ``deviation`` (an upper bound on its standard deviation).
        """
        due = self._second // SPEEDUP_SECONDS
        if self._speedups[0] != due:
            self._speedups = due, self._speedup(self._kept(HOUR), SPANS[HOUR])
        return self._speedups[1]

    def span(self, span: int) -> dict[str, Any]:
        """Return the last *span* seconds, a key of SPANS, as JSON builtins; docs/json.md lists the fields."""
        period, kept = SPANS[span], self._kept(span)
        return {
            "span": span,
            "period": period,
            "steps": list(self.depths),
            "buckets": [self._described(index, bucket, period) for index, bucket in kept],
            "speedup": self._speedup(kept, period),
            "by_batch": [
                self._region(kept, region) for region in sorted({region for _, bucket in kept for region in bucket})
            ],
        }

    def _rows(self, mixes: Collection[RoundMix], policy: AdaptivePolicy) -> Bucket:
        rows: Bucket = {}
        count = len(self.depths)
        usual = _usual_seconds(mixes)
        for mix in mixes:
            region = REGIONS.index(region_of(mix.batch_size))
            row = rows.setdefault(region, array("f", bytes(4 * (HEAD + 4 * count))))
            prices = policy.prices(mix.batch_size, mix.steps)
            own = own_seconds(mix, prices) if prices is not None else None
            if own is None and not mix.timed:
                own = usual.get(region)
            taken = mix.seconds(own or 0.0)
            row[REQUESTS] += mix.requests
            row[TOKENS] += mix.tokens
            row[SECONDS] += taken
            row[HEAD + self._place[mix.steps]] += mix.rounds
            if prices is not None and mix.chosen:  # forced rounds say nothing about the policy
                for steps, seconds, deviation in at_fixed_depths(mix, prices):
                    at = HEAD + count + 3 * self._place[steps]
                    row[at] += taken
                    row[at + 1] += seconds
                    row[at + 2] += deviation
        return rows

    def _file(self, second: int, rows: Bucket) -> None:
        for span, ring in self._rings.items():
            index = second // SPANS[span]
            if not ring or ring[-1][0] != index:
                ring.append((index, {region: row[:] for region, row in rows.items()}))
                continue
            bucket = ring[-1][1]
            for region, row in rows.items():
                known = bucket.get(region)
                bucket[region] = row[:] if known is None else array("f", map(float.__add__, known, row))

    def _kept(self, span: int) -> list[tuple[int, Bucket]]:
        """Return the buckets of the last *span* seconds, oldest first."""
        oldest = (self._second - span) // SPANS[span]
        return [(index, bucket) for index, bucket in self._rings[span] if index > oldest]

    def _described(self, index: int, bucket: Bucket, period: int) -> dict[str, Any]:
        end = min((index + 1) * period, self._second)
        rows = [self._counted(region, [row]) for region, row in sorted(bucket.items())]
        return {"ago": self._second - end, "seconds": end - index * period, "batches": rows}

    def _region(self, kept: list[tuple[int, Bucket]], region: int) -> dict[str, Any]:
        rows = [bucket[region] for _, bucket in kept if region in bucket]
        seconds = sum(row[SECONDS] for row in rows)
        return {**self._counted(region, rows), "seconds": seconds, "against": self._against(rows)}

    def _counted(self, region: int, rows: list[array[float]]) -> dict[str, Any]:
        requests, tokens, _, *rounds = (sum(column) for column in zip(*rows, strict=True))
        rounds = [round(count) for count in rounds[: len(self.depths)]]
        return {"region": REGIONS[region], "requests": round(requests), "tokens": round(tokens), "rounds": rounds}

    def _speedup(self, kept: list[tuple[int, Bucket]], period: int) -> dict[str, Any] | None:
        against = self._against([row for _, bucket in kept for row in bucket.values()])
        if not against:
            return None
        return {"seconds": (kept[-1][0] + 1 - kept[0][0]) * period, "against": against}

    def _against(self, rows: list[array[float]]) -> list[dict[str, Any]]:
        """Return the speedup over all fixed steps with a modeled time for some round, and its standard deviation."""
        found, begin = [], HEAD + len(self.depths)
        for place, steps in enumerate(self.depths):
            at = begin + 3 * place
            taken, fixed, doubt = (sum(row[at + column] for row in rows) for column in range(3))
            if taken > 0.0:
                found.append({"steps": steps, "times": fixed / taken, "deviation": doubt / taken})
        return found


def _usual_seconds(mixes: Collection[RoundMix]) -> dict[int, float]:
    """Return by region the mean seconds of its timed rounds, for rounds that have neither a clock's nor a modeled time.

    With 0 their tokens would seem to have taken no time.
    """
    seconds, timed = defaultdict[int, float](float), Counter[int]()
    for mix in mixes:
        region = REGIONS.index(region_of(mix.batch_size))
        seconds[region] += mix.timed_seconds
        timed[region] += mix.timed
    return {region: seconds[region] / count for region, count in timed.items() if count}


# The speedup of adaptive speculation: the modeled time of fixed steps over the time of its rounds. The formula is in
# docs/monitoring.md, "What speculation was worth". The measured time is scaled by a ratio of modeled times, so a
# disturbance of a round affects both sides.
#
# The deviation follows from those of T(b, s), T(b, d) and the expected tokens. An error of a cell is the same in every
# round, so the deviations are averaged as if they were fully correlated: an upper bound on the standard deviation.


def own_seconds(mix: RoundMix, prices: RoundPrices) -> float | None:
    """Return the modeled seconds of a round like those of *mix*; None without a modeled time."""
    return prices.seconds.get(mix.steps, prices.lookups.get(mix.steps))


def at_fixed_depths(mix: RoundMix, prices: RoundPrices) -> Iterator[tuple[int, float, float]]:
    """Yield all steps with a modeled round time, the seconds of *mix*'s tokens there, and their standard deviation.

    *prices* are for the mix's batch size and steps. If these have no modeled time, nothing is yielded.
    """
    own = own_seconds(mix, prices)
    if own is None or not mix.requests:
        return
    taken, tokens = mix.seconds(own), mix.tokens
    for steps, seconds in prices.seconds.items():
        fixed = taken * seconds / own * tokens / mix.tokens_at(steps, prices.tokens)
        yield steps, fixed, fixed * _doubt(prices, mix.steps, steps)


def _doubt(prices: RoundPrices, drafted: int, steps: int) -> float:
    """Return the relative standard deviation of the time that rounds of *drafted* steps would have taken at *steps*."""
    if steps == drafted:
        return 0.0
    tokens = prices.tokens_deviation.get(steps, 0.0) if steps > drafted else 0.0
    own = prices.deviation.get(drafted, prices.deviation[steps])  # lookup rounds have none
    return math.sqrt(prices.deviation[steps] ** 2 + own**2 + tokens**2)
