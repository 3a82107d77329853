"""Count how often the throughput policy switches per hour in long simulated load that does not change.

    python -m benchmarks.steady_switches [--output benchmarks/results/simulation/steady.json]

Round times are from the shipped H200 profile, which the policy does not get. Every draft is accepted with probability P
if the one before it was. The simulation adds effects observed on a server with an H200:

- *dips*: a request has ended and its successor is missing for a round or two; its prefill cannot be timed. Dips come in
  bursts, because requests that start together end at nearly the same time;
- *idling*: some prefills leave the device idle, and it is faster for the next four rounds;
- *wander* and *spells*: all depths get a few percent slower or faster, for a second or for some rounds;
- *stalls*: the host stalls, and rounds take up to 2.3 times as long for half a second.

Each draw simulates half an hour of rounds, without the first minute, in which the policy learns. A probe counts as two
switches.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.results import command_parser, origin, write
from benchmarks.policies import SETTLE_SECONDS
from benchmarks.policies import STEADY_P as P
from sglang_adaptive.lab.simulate.contenders import build
from sglang_adaptive.lab.simulate.cost import FloatArray, load_cost
from sglang_adaptive.lab.simulate.engine import play
from sglang_adaptive.lab.simulate.trace import IntArray, Scene, Trace, closed_loop

BATCHES, SEEDS, ROUNDS = (1, 8, 32), (1, 2, 3), 300_000
LIFETIME_ROUNDS, LIFETIME_SPREAD = 140.0, 9.0
"""Mean and standard deviation of the rounds of a request: 400 tokens at an accept length of 2.9."""
IDLE_SHARE, IDLE = 0.1, (0.87, 0.88, 0.9, 0.95)
"""Share of prefills that leave the device idle, and the factor on each of the rounds that follow."""
WANDER, WANDER_ROUNDS = 0.012, 150.0
"""Standard deviation (log) of the slow wander, and the rounds after which it forgets."""
SPELL_EVERY, SPELL_ROUNDS, SPELLS = 1500, (8, 50), (0.91, 0.94, 1.06, 1.09)
"""Mean rounds between two spells, their length, and the factors on the rounds."""
STALL_EVERY, STALL_ROUNDS, STALLS = 30_000, (20, 90), (1.3, 2.3)
"""The same for stalls; the factor lies between the two."""


def main(argv: Sequence[str]) -> int:
    """Measure, print and write every draw."""
    options = parser().parse_args(argv)
    draws = [measure(batch, seed, options.rounds) for batch in BATCHES for seed in SEEDS]
    for draw in draws:
        told = "batch {batch_size}, seed {seed}: {switches_per_hour:.0f} switches an hour, {share:.4f} of the oracle"
        print(told.format(**draw))
    if options.output:
        source = origin("steady_switches", argv) | {"p": P, "rounds": options.rounds}
        write(options.output, {"provenance": source, "draws": draws})
    return 0


def parser() -> argparse.ArgumentParser:
    made = command_parser("steady_switches", __doc__)
    made.add_argument("--output", type=Path)
    made.add_argument("--rounds", type=int, default=ROUNDS)
    return made


def measure(batch: int, seed: int, rounds: int) -> dict[str, Any]:
    """Return the policy's result in one draw; ``share`` is of the tokens/s of the best depth of every round."""
    rng = np.random.default_rng([seed, batch])
    trace = steady_load(batch, rounds, rng)
    depths, every = play(build(trace), trace), np.arange(rounds)
    rates = [_rate(trace, every, at) for at in (depths, trace.oracle_depths)]
    ended = np.cumsum(trace.seconds[every, depths])
    switched = ended[:-1][depths[1:] != depths[:-1]]
    hours = (ended[-1] - SETTLE_SECONDS) / 3600.0
    late = int((switched > SETTLE_SECONDS).sum())
    found = {"batch_size": batch, "seed": seed, "minutes": float(ended[-1]) / 60.0, "share": rates[0] / rates[1]}
    return {**found, "switches": late, "switches_per_hour": late / hours}


def steady_load(batch: int, rounds: int, rng: np.random.Generator) -> Trace:
    """Return a closed loop of *batch* requests, with all effects of a server."""
    cost = load_cost(None)[1]
    who = closed_loop(_dips(batch, rounds, rng), rng, batch)
    same = np.full(rounds, P), np.ones(rounds)
    trace = Scene(cost, who, *same).build(rng)
    factor = _wander(rounds, rng) * _spells(rounds, rng) * _idling(trace, rng) * _stalls(rounds, rng)
    return replace(trace, clock=trace.clock * factor)


def _rate(trace: Trace, every: IntArray, depths: IntArray) -> float:
    return float(trace.tokens[every, depths].sum() / trace.seconds[every, depths].sum())


def _dips(batch: int, rounds: int, rng: np.random.Generator) -> IntArray:
    """Return the number of decoding requests by round: each slot has a pause between two requests."""
    running, most = np.full(rounds, batch), int(2 * rounds / LIFETIME_ROUNDS)
    for _ in range(batch):
        for end in np.cumsum(rng.normal(LIFETIME_ROUNDS, LIFETIME_SPREAD, most)).astype(int):
            running[end : end + rng.integers(1, 3)] -= 1
    return np.maximum(running, 1)


def _wander(rounds: int, rng: np.random.Generator) -> FloatArray:
    keep = np.exp(-1.0 / WANDER_ROUNDS)
    steps = rng.normal(0.0, WANDER * np.sqrt(1.0 - keep**2), rounds)
    level, levels = 0.0, np.empty(rounds)
    for index, step in enumerate(steps):
        levels[index] = level = keep * level + step
    return np.exp(levels)


def _spells(rounds: int, rng: np.random.Generator) -> FloatArray:
    factor = np.ones(rounds)
    for start in np.flatnonzero(rng.random(rounds) < 1.0 / SPELL_EVERY):
        factor[start : start + rng.integers(*SPELL_ROUNDS)] *= rng.choice(SPELLS)
    return factor


def _idling(trace: Trace, rng: np.random.Generator) -> FloatArray:
    factor = np.ones(trace.rounds)
    prefills = np.flatnonzero(~trace.comparable)
    for prefill in prefills[rng.random(len(prefills)) < IDLE_SHARE]:
        after = factor[prefill + 1 : prefill + 1 + len(IDLE)]
        after[:] = IDLE[: len(after)]
    return factor


def _stalls(rounds: int, rng: np.random.Generator) -> FloatArray:
    factor = np.ones(rounds)
    for start in np.flatnonzero(rng.random(rounds) < 1.0 / STALL_EVERY):
        factor[start : start + rng.integers(*STALL_ROUNDS)] = rng.uniform(*STALLS)
    return factor


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
