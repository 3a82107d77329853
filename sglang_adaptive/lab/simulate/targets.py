"""Targets for the throughput policy, and whether it met them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sglang_adaptive.lab.simulate.results import BUCKET, SuiteResult

JUDGED = "throughput"
"""The policy that targets and gates are for."""
STARTED = 500
"""A start without a profile must reach its speed within this many rounds."""

Measure = Callable[[SuiteResult], float]


@dataclass(frozen=True)
class Metric:
    """A figure of one suite; higher is better unless ``ceiling``."""

    title: str
    measure: Measure
    ceiling: bool = False


@dataclass(frozen=True)
class Target:
    """One line of the table; *suite* ``*`` stands for the worst of all suites that ran."""

    suite: str
    metric: str
    bound: float


@dataclass(frozen=True)
class Gate:
    """A figure and its bound; a figure without a bound is only reported."""

    title: str
    measured: float
    bound: float | None = None
    ceiling: bool = False
    hindsight: float | None = None
    """The same figure of the best oracle that knows no more than a server could; None if none was played."""
    suite: str | None = None
    """As in `Target`; None on recorded text."""

    @property
    def met(self) -> bool:
        """Whether the figure is within the bound."""
        if self.bound is None:
            return True
        return self.measured <= self.bound if self.ceiling else self.measured >= self.bound

    def as_json(self) -> dict[str, Any]:
        """Return the gate as JSON builtins; figures are rounded to 5 digits."""
        found: dict[str, Any] = {} if self.suite is None else {"suite": self.suite}
        found |= {"figure": self.title, "measured": round(float(self.measured), 5), "bound": self.bound}
        if self.hindsight is not None:
            found["hindsight"] = round(float(self.hindsight), 5)
        if self.bound is not None:
            found |= {"at": "most" if self.ceiling else "least", "met": bool(self.met)}
        return found


def _scores(result: SuiteResult, name: str) -> list[float]:
    return [float(getattr(score, name)) for score in result.scores[JUDGED]]


def _started(result: SuiteResult) -> float:
    """Return the share in the last bucket that ends by round 500, averaged over the traces."""
    curve = result.mean_curve(JUDGED)
    return float(curve[min(STARTED // BUCKET, len(curve)) - 1])


def _slowest_recovery(result: SuiteResult) -> float:
    return float(max((rounds for score in result.scores[JUDGED] for rounds in score.recoveries), default=0))


METRICS: Mapping[str, Metric] = {
    "mean": Metric("share of oracle, mean", lambda r: r.mean_share(JUDGED)),
    "worst": Metric("share of oracle, worst trace", lambda r: r.worst_share(JUDGED)),
    "zero": Metric("against zero steps, worst 500 rounds", lambda r: min(_scores(r, "zero_window"))),
    "switches": Metric("switches in 200 rounds, mean", lambda r: float(np.mean(_scores(r, "switches"))), True),
    "switches-worst": Metric("switches in 200 rounds, worst trace", lambda r: max(_scores(r, "switches")), True),
    "recovery": Metric("rounds until within 5%, slowest", _slowest_recovery, True),
    "started": Metric("share of oracle, rounds 450 to 500", _started),
}

_SHARES: Mapping[str, tuple[float, float]] = {
    "stationary": (0.99, 0.97),
    "acceptance": (0.985, 0.96),
    "load": (0.985, 0.96),
    "both": (0.985, 0.96),
    "profile-5": (0.98, 0.95),
    "profile-15": (0.97, 0.95),
    "drift": (0.97, 0.94),
    "bad-draft": (0.97, 0.94),
    "heterogeneous": (0.97, 0.94),
    "noise-gpu": (0.985, 0.97),
    "noise-host": (0.98, 0.96),
    "noise-busy": (0.96, 0.88),
}

TARGETS: tuple[Target, ...] = (
    *(
        Target(suite, metric, bound)
        for suite, pair in _SHARES.items()
        for metric, bound in zip(("mean", "worst"), pair, strict=True)
    ),
    Target("step-change", "recovery", 30),
    Target("stationary", "switches", 1),
    Target("stationary", "switches-worst", 1),
    Target("cold-start", "started", 0.95),
    Target("*", "zero", 0.99),
)


def outcomes(results: Mapping[str, SuiteResult]) -> list[Gate]:
    """Compare every target whose suite and policy ran."""
    ran = {name: result for name, result in results.items() if JUDGED in result.scores}
    found = []
    for target in TARGETS:
        judged = list(ran.values()) if target.suite == "*" else [ran[target.suite]] if target.suite in ran else []
        if judged:
            metric = METRICS[target.metric]
            measured = (max if metric.ceiling else min)(metric.measure(result) for result in judged)
            found.append(Gate(metric.title, measured, target.bound, metric.ceiling, suite=target.suite))
    return found
