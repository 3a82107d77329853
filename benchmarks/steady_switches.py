"""How calm the throughput policy is: switches an hour in long simulated load that does not change.

    python -m benchmarks.steady_switches [--output benchmarks/results/simulation/steady.json]

Round times of the shipped H200 profile with the simulator's clock noise; every draft is accepted with probability P
given the one before. Half an hour of rounds a draw; the first minute, in which the policy learns, is left out. A probe
is two switches.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from sglang_adaptive import provenance
from sglang_adaptive.simulate.engine import play
from sglang_adaptive.simulate.ours import build
from sglang_adaptive.simulate.population import closed_loop
from sglang_adaptive.simulate.profile_file import load_cost
from sglang_adaptive.simulate.trace import Scene

P, BATCHES, SEEDS, ROUNDS, SETTLED_SECONDS = 0.7, (1, 8, 32), (1, 2, 3), 300_000, 60.0


def main() -> None:
    """Measure every draw, print it and write all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    draws = [measure(batch, seed, options.rounds) for batch in BATCHES for seed in SEEDS]
    for draw in draws:
        print("batch {batch_size}, seed {seed}: {switches_per_hour:.0f} switches an hour".format(**draw))
    if options.output:
        about = {"p": P, "rounds": options.rounds, "versions": provenance.versions("sglang-adaptive")}
        options.output.write_text(json.dumps({**about, "draws": draws}, indent=1) + "\n")


def measure(batch: int, seed: int, rounds: int) -> dict[str, Any]:
    """Return what the policy did in one draw."""
    cost, rng = load_cost(None)[1], np.random.default_rng([seed, batch])
    who = closed_loop(np.full(rounds, batch), rng, batch)
    same = np.full(rounds, P), np.ones(rounds)
    trace = Scene("steady", cost.steps, cost, who, *same, given=cost).build(rng)
    depths = play(build(trace), trace).depths
    ended = np.cumsum(trace.seconds[np.arange(rounds), depths])
    switched = ended[:-1][depths[1:] != depths[:-1]]
    hours = (ended[-1] - SETTLED_SECONDS) / 3600.0
    late = int((switched > SETTLED_SECONDS).sum())
    found = {"batch_size": batch, "seed": seed, "minutes": float(ended[-1]) / 60.0}
    return {**found, "switches": late, "switches_per_hour": late / hours}


if __name__ == "__main__":
    main()
