"""Whatever the policy believes about round times, it runs near the best depth soon, and from then on."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from sglang_adaptive.lab.simulate import score
from sglang_adaptive.lab.simulate.contenders import GRAPH_BATCHES, build
from sglang_adaptive.lab.simulate.cost import FloatArray, RoundCost, load_cost
from sglang_adaptive.lab.simulate.engine import play
from sglang_adaptive.lab.simulate.rounds import factors
from sglang_adaptive.lab.simulate.trace import Scene, Trace, closed_loop, random_decay, switching

COST = load_cost(None)[1]
LOADS = ((1,), (4,), (14,), (60,), (4, 16))
"""Batch sizes, with and without times of their own; of two the load changes between, after 60 to 400 rounds."""
NEAR = 0.98
SOON, LATER, WINDOW = 2000, 2500, 500
"""Rounds at a batch size until the policy is near the best depth, for which it stays there, and of one figure."""
WORST = 1.0
"""Largest error of a time (log)."""
MISLED = pytest.mark.xfail(strict=True, reason="0.93 and 0.95 of the best depth: 14 of 240 machines stay below NEAR")
CHANGED = [pytest.param(*one, marks=[MISLED] * (one in (((1,), 0), ((4,), 0)))) for one in product(LOADS, range(2))]


def wrong(rng: np.random.Generator) -> RoundCost:
    """Return the true times with errors in some or all cells: any, a factor of two, only too long or only too short."""
    shape = COST.seconds.shape
    low, high = ((-WORST, WORST), (0.0, WORST), (-WORST, 0.0))[rng.integers(3)]
    errors = rng.uniform(low, high, shape) if rng.random() < 0.75 else np.log(2.0) * rng.choice([-1.0, 1.0], shape)
    affected = rng.random(shape) < rng.choice([0.3, 1.0])
    return RoundCost(COST.batches, COST.steps, COST.seconds * np.exp(errors * affected))


def trace_of(load: tuple[int, ...], seed: int, measured: int = 0, error: bool = True) -> Trace:
    """Return a trace, with an exact clock, on which the policy starts with a wrong profile unless *error* is False.

    The profile is right for the first *measured* rounds, so the policy has measured it when the machine changes.
    """
    rng = np.random.default_rng(seed)
    table = wrong(rng) if error else COST
    rounds = measured + SOON * len(load) + LATER
    who = closed_loop(switching(rounds, rng, lambda: rng.choice(load)).values.astype(np.int64), rng, max(load))
    p = np.full(rounds, rng.uniform(0.4, 0.95))
    trace = Scene(COST, who, p, random_decay(rng), given=table).build(rng)
    seconds = trace.seconds.copy()
    seconds[:measured] = table.table(max(load))[trace.batch[:measured]]
    return replace(trace, seconds=seconds, clock=np.ones(rounds))


def shares(trace: Trace, later: int = LATER) -> FloatArray:
    """Return the policy's share of the best depth in each window of the last *later* rounds."""
    depths = play(build(trace, graph_batches=GRAPH_BATCHES), trace)
    return score.curve(trace, depths, WINDOW)[-later // WINDOW :]


@pytest.mark.parametrize(("load", "seed"), [*product(LOADS, range(3)), ((56,), 5)])
def test_no_profile_keeps_the_policy_from_the_best_depth(load: tuple[int, ...], seed: int) -> None:
    """By the last one, drafted rounds take three to four times as long as they do."""
    assert shares(trace_of(load, seed)).min() >= NEAR


@pytest.mark.parametrize(("load", "seed"), CHANGED)
def test_nor_do_measurements_of_another_time(load: tuple[int, ...], seed: int) -> None:
    """A thousand rounds later than with a wrong profile: what was measured is looked at again after up to 3,600."""
    assert shares(trace_of(load, seed, measured=2000), LATER - 1000).min() >= NEAR


@pytest.mark.parametrize("kind", ["gpu", "host", "busy"])
def test_recorded_noise_does_not_lead_it_away(kind: str) -> None:
    found = []
    for load in LOADS:
        trace = trace_of(load, 1, error=False)
        clock = factors(kind, trace.rounds, np.random.default_rng(101))
        found.append(shares(replace(trace, clock=clock)))
    assert np.mean(found) >= 0.99 and np.min(found) >= 0.9
