"""Contenders in turn on the same requests, until their ratios are known well enough or the time is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from benchmarks.served import loop
from benchmarks.served.ratios import ratio
from benchmarks.served.report import Report
from benchmarks.server.passes import Contender

Pass = dict[str, Any]
OURS = "throughput"
LEAST_TURNS = 4
FAILURES = 2
"""Passes of one contender that may fail before it is left out."""

SETTLE_SECONDS = 0.05


def one_pass(contender: Contender, requests: int, concurrency: int, make: loop.Make) -> Pass:
    """Serve *requests* requests, *concurrency* at a time, and return the figures of the decode rounds meanwhile.

    Counted are rounds that follow another decode round, both with fewer free places than are filled at once. The rate
    is *concurrency* x tokens a request and round / seconds a round: contenders whose requests end together would
    otherwise seem to run more of them. ``wall`` is every token over every second, prefills and gaps included.
    Raises RuntimeError without such rounds.
    """
    process = contender.server.process
    contender.take_over()
    process.least_batch = concurrency - loop.group_of(concurrency) + 1
    before = process.read()
    done = loop.run(contender.server.client.url, requests, concurrency, make)
    time.sleep(SETTLE_SECONDS)  # a round of aborted requests may still run
    counted = process.read() - before
    if counted.busy_rounds < 3:
        raise RuntimeError(f"only {counted.busy_rounds:.0f} rounds at batch {concurrency}; {done.failed[:1]}")
    accept, seconds = counted.busy_tokens / counted.busy_requests, counted.busy_seconds / counted.busy_rounds
    found = {
        "rate": concurrency * accept / seconds,
        "wall": done.tokens / done.seconds,
        "seconds": done.seconds,
        "accept": accept,
        "round_ms": 1000 * seconds,
        "rounds": int(counted.busy_rounds),
        "switches": int(counted.switches),
    }
    if contender.server.policy.ours and contender.steps is None:
        found["depths"] = counted.depths()
    return {**found, "failed": done.failed[:2]} if done.failed else found


class Race:
    """Turns of all contenders, for several batch sizes; each turn is a block of requests that everybody serves."""

    def __init__(
        self,
        contenders: Sequence[Contender],
        sizes: Sequence[int],
        serve: Callable[[Contender, int, int], Pass],
        report: Report,
        *,
        end: float,
        error: float = 0.01,
        ours: str = OURS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*serve* is called with a contender, a batch size and the number of the block; *end* is a time of *clock*."""
        self._contenders, self._serve, self._report = list(contenders), serve, report
        self._end, self._error, self._ours, self._clock = end, error, ours, clock
        self._turns: dict[int, list[Pass]] = {size: [] for size in sizes}
        self._longest = dict.fromkeys(sizes, 0.0)
        self._failed: dict[str, int] = {}
        report.content["batches"] = self._turns

    def run(self) -> None:
        """Go on until every ratio is known well enough, or no turn would end in time."""
        while (size := self._next()) is not None:
            begin = self._clock()
            self._turn(size)
            self._longest[size] = max(self._longest[size], self._clock() - begin)
            self._report.write()

    def _next(self) -> int | None:
        """Return the batch size that needs a turn most, of those that have time for one."""
        left = self._end - self._clock()
        open_sizes = [size for size in self._turns if left > 1.05 * self._longest[size] and left > 0]
        few = [size for size in open_sizes if len(self._turns[size]) < LEAST_TURNS]
        if few:
            return min(few, key=lambda size: len(self._turns[size]))
        worst = {size: self.worst_error(size) for size in open_sizes}
        unsure = [size for size in open_sizes if worst[size] > self._error]
        return max(unsure, key=lambda size: worst[size], default=None)

    def worst_error(self, size: int) -> float:
        """Return the largest relative standard error of ours over another."""
        rates = rates_by_name(self._turns[size])
        own = rates.pop(self._ours, {})
        found = [0.0]
        for other in rates.values():
            both = sorted(set(own) & set(other))
            if len(both) > 1:
                one = ratio([own[turn] for turn in both], [other[turn] for turn in both])
                found.append(one.error / one.value)
        return max(found)

    def _turn(self, size: int) -> None:
        number = len(self._turns[size])
        passes: dict[str, Pass] = {}
        self._turns[size].append({"block": number, "passes": passes})
        for contender in self._contenders[:: 1 if number % 2 == 0 else -1]:
            if self._failed.get(contender.name, 0) >= FAILURES:
                continue
            try:
                passes[contender.name] = self._serve(contender, size, number)
            except Exception as problem:  # a lent machine: the others go on
                self._failed[contender.name] = self._failed.get(contender.name, 0) + 1
                self._report.note(f"batch {size}, turn {number}, {contender.name}: {type(problem).__name__}: {problem}")
        rates = " ".join(f"{name} {one['rate']:.0f}" for name, one in sorted(passes.items()))
        error = self.worst_error(size)
        print(f"  batch {size} turn {number}: {rates} tokens/s; worst error {error:.1%}", flush=True)


def rates_by_name(turns: Sequence[Pass]) -> dict[str, dict[int, float]]:
    """Return for each contender its rates by turn."""
    found: dict[str, dict[int, float]] = {}
    for index, turn in enumerate(turns):
        for name, one in turn["passes"].items():
            found.setdefault(name, {})[index] = one["rate"]
    return found


def mean_rate(turns: Sequence[Pass], name: str) -> float:
    """Return the mean rate of a contender over its turns."""
    return fmean(rates_by_name(turns)[name].values())
