"""Runs on one trace, priced by every profile: the gain over the best uniform depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from benchmarks.verify_budget import budget
from benchmarks.verify_budget.beliefs import BELIEFS
from benchmarks.verify_budget.closed_loop import Tally
from benchmarks.verify_budget.early_stop import stopping
from benchmarks.verify_budget.prices import Prices
from sglang_adaptive.traces import Trace

RUNGS = (1, 2, 3, 5, 7)
"""Depths of a usual ladder: what a uniform round, and a budget, may be."""

PAIRS = ((2, 1), (3, 1), (3, 2), (5, 2), (5, 3), (7, 2), (7, 3), (7, 5))
"""Steps that are drafted, and the budget: drafts verified of a request, on average."""

FREE_STEPS = (2, 3, 5, 7)
EARLY_BATCHES = (1, 2)
"""Where the host may look at a draft between its steps; larger batches get budgets."""

ASKING = (0.0, 0.0001)
"""Seconds that the looks of a round cost."""

SEEDS = (0, 1)


@dataclass(frozen=True)
class Uniform:
    """The best uniform depth of a cell."""

    steps: int
    tokens_per_second: float


@dataclass(frozen=True)
class Gain:
    """The best run of a kind, over the best uniform depth."""

    gain: float
    """Mean over the orders of the requests that were drawn."""
    spread: float
    """Largest less smallest of them."""
    steps: int
    verified: float
    """Drafts verified a request and round."""


def cells(trace: Trace, profiles: Mapping[str, Prices], batches: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Yield what each batch size came to on each profile, as JSON builtins."""
    for batch in batches:
        tokens = 12_000 if batch in EARLY_BATCHES else 10_000 + 800 * batch
        alike = {
            steps: [_fixed(trace, "as it is", batch, steps, steps, tokens, seed) for seed in SEEDS] for steps in RUNGS
        }
        some = {
            (name, steps, rung): [_fixed(trace, name, batch, steps, rung, tokens, seed) for seed in SEEDS]
            for name in BELIEFS
            for steps, rung in (() if batch in EARLY_BATCHES else PAIRS)
        }
        for profile, prices in profiles.items():
            yield {"profile": profile, "batch": batch, "measured": prices.measured(batch, 0)} | _cell(
                trace, batch, prices, alike, some, tokens
            )


def _cell(
    trace: Trace,
    batch: int,
    prices: Prices,
    alike: Mapping[int, list[Tally]],
    some: Mapping[tuple[str, int, int], list[Tally]],
    tokens: int,
) -> dict[str, Any]:
    rates = {steps: [_rate(tally, prices, batch, steps, steps) for tally in runs] for steps, runs in alike.items()}
    rates[0] = [batch / prices.without_drafts(batch)] * len(SEEDS)
    best = max(rates, key=lambda steps: fmean(rates[steps]))
    single = rates[best]
    found: dict[str, Any] = {"uniform": asdict(Uniform(best, fmean(single))), "budget": {}, "early": {}}
    for name in () if batch in EARLY_BATCHES else BELIEFS:
        runs = {
            (steps, rung): _gain(
                [_rate(t, prices, batch, steps, rung) for t in some[name, steps, rung]], single, steps, rung
            )
            for steps, rung in PAIRS
        }
        found["budget"][name] = asdict(max(runs.values(), key=lambda gain: gain.gain))
    most = "learnt by probability and position"
    if batch not in EARLY_BATCHES and not prices.draft[1]:
        tries = [_free(trace, most, batch, steps, prices, single, tokens) for steps in FREE_STEPS]
        found["free"] = asdict(max(tries, key=lambda gain: gain.gain))
    if batch in EARLY_BATCHES and not prices.draft[1]:
        for name in (most, "known beforehand"):
            for ask in ASKING:
                found["early"][f"{name}, {1000 * ask:g} ms a round"] = asdict(
                    _early(trace, name, batch, prices, ask, single, tokens)
                )
    return found


def _fixed(trace: Trace, name: str, batch: int, steps: int, rung: int, tokens: int, seed: int) -> Tally:
    return budget.fixed(trace, BELIEFS[name](trace), batch, steps, rung, tokens, seed)


def _rate(tally: Tally, prices: Prices, batch: int, steps: int, rung: int) -> float:
    price = prices.seconds if rung == steps else prices.ragged
    return tally.tokens / (tally.rounds * float(price(batch, steps, batch * (rung + 1))))


def _free(trace: Trace, name: str, batch: int, steps: int, prices: Prices, single: list[float], tokens: int) -> Gain:
    runs = [
        budget.free(trace, BELIEFS[name](trace), batch, steps, prices, 1.02 * rate, tokens, seed)
        for seed, rate in zip(SEEDS, single, strict=True)
    ]
    return _gain([run.rate for run in runs], single, steps, fmean(run.verified / run.rounds / batch for run in runs))


def _early(trace: Trace, name: str, batch: int, prices: Prices, ask: float, single: list[float], tokens: int) -> Gain:
    runs = [
        stopping(trace, BELIEFS[name](trace), batch, prices, 1.03 * rate, ask, tokens, seed)
        for seed, rate in zip(SEEDS, single, strict=True)
    ]
    return _gain([run.rate for run in runs], single, 7, fmean(run.verified / run.rounds / batch for run in runs))


def _gain(rates: list[float], single: list[float], steps: int, verified: float) -> Gain:
    gains = [rate / other for rate, other in zip(rates, single, strict=True)]
    return Gain(fmean(gains), max(gains) - min(gains), steps, float(verified))
