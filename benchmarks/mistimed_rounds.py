"""What it costs the throughput policy when the launch of a prefill is timed as part of a round.

    python -m benchmarks.mistimed_rounds [--output benchmarks/results/simulation/mistimed.json]

A steady closed loop on the shipped H200 profile with the simulator's clock noise: requests of 400 tokens end, the batch
misses each for one or two rounds, and the next one is prefilled. With overlap the result of the last of these rounds
waits until the prefill is launched, 20 ms. Once that round is timed, once it is left out, as this package does.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.steady_switches import BATCHES, SEEDS, P, steady_trace
from sglang_adaptive import provenance
from sglang_adaptive.simulate.engine import play
from sglang_adaptive.simulate.ours import build
from sglang_adaptive.simulate.score import share
from sglang_adaptive.simulate.trace import Trace

ROUNDS = 60_000
TOKENS, ACCEPT_LENGTH, LAUNCH_SECONDS, DEPTH = 400, 2.5, 0.02, 3


def main() -> None:
    """Play every draw both ways, print and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    draws = [measure(batch, seed, timed) for batch in BATCHES for seed in SEEDS for timed in (True, False)]
    for draw in draws:
        print("batch {batch_size}, seed {seed}, timed {timed}: {share:.4f} of the oracle, {depths}".format(**draw))
    if options.output:
        about = {"p": P, "rounds": ROUNDS, "versions": provenance.versions("sglang-adaptive")}
        options.output.write_text(json.dumps({**about, "draws": draws}, indent=1) + "\n")


def measure(batch: int, seed: int, timed: bool) -> dict[str, Any]:
    """Return the policy's share of the oracle's throughput; *timed* says whether launches pass for rounds."""
    trace = _trace(batch, seed, timed)
    depths = play(build(trace), trace).depths
    used = {str(steps): int(rounds) for steps, rounds in zip(*np.unique(depths, return_counts=True), strict=True)}
    found = {"batch_size": batch, "seed": seed, "timed": timed}
    return {**found, "share": share(trace, depths), "depths": used}


def _trace(batch: int, seed: int, timed: bool) -> Trace:
    rng = np.random.default_rng([seed, batch])
    sizes, comparable, launches = np.full(ROUNDS, batch), np.ones(ROUNDS, dtype=bool), np.zeros(ROUNDS)
    now = 0
    while True:
        now += 1 + int(rng.exponential(TOKENS / (batch * ACCEPT_LENGTH)))
        prefill = now + int(rng.integers(1, 3))
        if prefill >= ROUNDS:
            break
        sizes[now:prefill] -= 1
        comparable[prefill] = False
        launches[prefill - 1] = LAUNCH_SECONDS
        comparable[prefill - 1] &= timed
    trace = steady_trace(np.maximum(1, sizes), rng)
    # The clock reads a launch as part of the round, which itself is as long as ever.
    clock = trace.clock * (1.0 + launches / trace.seconds[:, DEPTH])
    return dataclasses.replace(trace, clock=clock, comparable=comparable)


if __name__ == "__main__":
    main()
