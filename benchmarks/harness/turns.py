"""Contenders take turns on the same work until their ratios are precise enough or time runs out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import fmean, geometric_mean, stdev
from typing import Any

import numpy as np

from benchmarks.harness.results import Report

Pass = dict[str, Any]
"""A contender's result in a turn; ``rate`` is compared."""

Case = Any
"""The conditions that contenders share, for example a batch size; hashable."""

LEAST_TURNS = 4
FAILURES = 2
"""Failed passes of one contender after which it is left out."""


@dataclass(frozen=True)
class Ratio:
    """One rate over another, and its standard error; NaN if a single turn gives none."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.3f}" if math.isnan(self.error) else f"{self.value:.3f} ± {self.error:.3f}"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return the geometric mean over turns of ours / theirs; its error is from the spread of the turns' logarithms.

    Both i-th values are from the same turn, with the same prompts. Raises ValueError if there are none.
    """
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    if not logs:
        raise ValueError("a ratio of no turns")
    value = math.exp(fmean(logs))
    return Ratio(value, value * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan)


def mean_ratio(parts: Sequence[Ratio]) -> Ratio:
    """Return the geometric mean of independent ratios. Raises ValueError if there are none."""
    value = geometric_mean([part.value for part in parts])
    return Ratio(value, value * math.sqrt(sum((part.error / part.value) ** 2 for part in parts)) / len(parts))


def best_single(rates: Sequence[Mapping[str, float]]) -> str | None:
    """Return the name with the highest geometric mean over the cases, among names in every case; None without."""
    common = set.intersection(*(set(case) for case in rates)) if rates else set()
    return max(sorted(common), key=lambda name: geometric_mean([case[name] for case in rates]), default=None)


def rates_by_name(turns: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Return each contender's rates by turn."""
    found: dict[str, dict[int, float]] = {}
    for index, turn in enumerate(turns):
        for name, one in turn["passes"].items():
            found.setdefault(name, {})[index] = one["rate"]
    return found


def mean_rates(turns: Sequence[Pass]) -> dict[str, float]:
    """Return each contender's mean rate."""
    return {name: fmean(rates.values()) for name, rates in rates_by_name(turns).items()}


def over(turns: Sequence[Pass], other: str, ours: str) -> Ratio | None:
    """Return *ours* over *other*, over the turns that both finished; None if there are none."""
    rates = rates_by_name(turns)
    both = sorted(set(rates.get(ours, {})) & set(rates.get(other, {})))
    return ratio([rates[ours][turn] for turn in both], [rates[other][turn] for turn in both]) if both else None


def behind(turns: Sequence[Mapping[str, Any]], names: Collection[str], share: float) -> set[str]:
    """Return those of *names* that were below *share* of the best of them in each of their turns, at least two."""
    rates = {name: rate for name, rate in rates_by_name(turns).items() if name in names and len(rate) > 1}
    best: dict[int, float] = {}
    for rate in rates.values():
        for turn, one in rate.items():
            best[turn] = max(one, best.get(turn, 0.0))
    return {name for name, rate in rates.items() if all(one < share * best[turn] for turn, one in rate.items())}


def percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    """Return p50, p95, p99 and the mean in milliseconds, with the number of values; None if there are none."""
    if not seconds:
        return None
    named = {f"p{percent}_ms": 1000 * float(np.percentile(seconds, percent)) for percent in (50, 95, 99)}
    return {**named, "mean_ms": 1000 * fmean(seconds), "count": len(seconds)}


class Race:
    """Turns of all contenders for several cases; all serve the same work in a turn, and the order alternates."""

    def __init__(
        self,
        contenders: Callable[[Case, int], Sequence[Any]],
        cases: Sequence[Case],
        serve: Callable[[Any, Case, int], Pass],
        report: Report,
        *,
        end: float,
        error: float = 0.0,
        least: int = LEAST_TURNS,
        most: int | None = None,
        ours: str = "",
        around: Callable[[Case], AbstractContextManager[Any]] = lambda case: nullcontext(),
        seconds: Callable[[Case], float] = lambda case: 0.0,
        after: Callable[[], None] = lambda: None,
        told: Callable[[Case], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*serve* serves each contender, which has a name, of a case and turn, inside *around* the case.

        Each case gets *least* turns. Further turns, up to *most*, are for the case where *ours* over another is least
        precise, until all are known to *error*, or until *end*, a time of *clock*. *seconds* is a pass's minimum time;
        *after* is called before the report is written, and *told* names a case on the console.
        """
        self.turns: dict[Case, list[Pass]] = {case: [] for case in cases}
        self._contenders, self._serve, self._report, self._after = contenders, serve, report, after
        self._end, self._error, self._ours, self._clock = end, error, ours, clock
        self._least, self._most = least, math.inf if most is None else most
        self._around, self._seconds, self._told = around, seconds, told
        self._longest_share, self._longest_pass = dict.fromkeys(cases, 0.0), dict.fromkeys(cases, 0.0)
        """Seconds: of a turn, what surrounds it included, over its contenders; of a pass."""
        self._failed: dict[str, int] = {}
        self._closed: set[Case] = set()
        """Cases that have no time or no contenders left."""

    def run(self) -> None:
        """Continue until every ratio is precise enough, or no turn would end in time."""
        while (case := self._next()) is not None:
            begin, many = self._clock(), self._many(case)
            self._turn(case)
            self._longest_share[case] = max(self._longest_share[case], (self._clock() - begin) / max(1, many))

    def _next(self) -> Case | None:
        """Return the case that most needs a turn, among those with time for one."""
        left = self._end - self._clock()
        timely = [
            case for case in self.turns
            if case not in self._closed
            and left > max(1.05 * self._longest_share[case] * self._many(case), self._seconds(case), 0.0)
        ]  # fmt: skip
        few = [case for case in timely if len(self.turns[case]) < self._least]
        if few:
            return min(few, key=lambda case: len(self.turns[case]))
        worst = {case: self.worst_error(case) for case in timely if len(self.turns[case]) < self._most}
        return max((case for case in worst if worst[case] > self._error), key=lambda case: worst[case], default=None)

    def _many(self, case: Case) -> int:
        """Return how many contenders the next turn of *case* has; later ones may have fewer."""
        return len(self._contenders(case, len(self.turns[case])))

    def worst_error(self, case: Case) -> float:
        """Return the largest relative standard error of ours over another."""
        names = [name for name in rates_by_name(self.turns[case]) if name != self._ours]
        found = [one for name in names if (one := over(self.turns[case], name, self._ours))]
        return max((one.error / one.value for one in found if not math.isnan(one.error)), default=0.0)

    def _turn(self, case: Case) -> None:
        number = len(self.turns[case])
        passes: dict[str, Pass] = {}
        everyone = list(self._contenders(case, number))[:: 1 if number % 2 == 0 else -1]
        taking_part = [one for one in everyone if self._failed.get(one.name, 0) < FAILURES]
        if not taking_part:
            self._closed.add(case)
            return
        self.turns[case].append({"block": number, "passes": passes})
        try:
            with self._around(case):
                for one in taking_part:
                    if not self._pass(one, case, number, passes):
                        self._closed.add(case)
                        break
        except Exception as problem:  # on a lent machine the other cases continue
            self._note(case, number, "", problem)
            for one in taking_part:
                self._failed[one.name] = self._failed.get(one.name, 0) + 1
        rates = " ".join(f"{name} {one['rate']:.4g}" for name, one in sorted(passes.items()))
        error = f"; worst error {self.worst_error(case):.1%}" if self._ours else ""
        self._report.say(f"{self._told(case)}, turn {number}: {rates}{error}")

    def _pass(self, one: Any, case: Case, number: int, passes: dict[str, Pass]) -> bool:
        """Serve one contender's pass; returns False if there is no time left for it."""
        begin = self._clock()
        if begin + max(self._seconds(case), 1.1 * self._longest_pass[case]) > self._end:
            self._report.note(f"{self._told(case)}: out of time in turn {number}")
            return False
        try:
            passes[one.name] = self._serve(one, case, number)
        except Exception as problem:
            self._failed[one.name] = self._failed.get(one.name, 0) + 1
            self._note(case, number, one.name, problem)
        self._longest_pass[case] = max(self._longest_pass[case], self._clock() - begin)
        self._after()
        self._report.write()
        return True

    def _note(self, case: Case, number: int, name: str, problem: Exception) -> None:
        who = f"{self._told(case)}, turn {number}" + (f", {name}" if name else "")
        self._report.note(f"{who}: {type(problem).__name__}: {problem}")
