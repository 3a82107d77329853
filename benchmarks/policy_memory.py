"""What a policy holds on to over a million rounds of changing batch sizes and acceptance.

    python -m benchmarks.policy_memory [--rounds N] [--json F]

Size is that of the pickled policy, which reaches every object that it keeps. Rounds are drawn as in
``policy_overhead.py``; the batch size changes every 50 rounds, acceptance every 400.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import sys
from pathlib import Path

from benchmarks import shipped_rounds
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.throughput.policy import ThroughputPolicy
from sglang_adaptive.simulate.provenance import about

LARGEST_BATCH = 64
SECONDS_A_STEP = 0.0002


def sizes(rounds: int, looks: int = 10) -> dict[int, int]:
    """Return the policy's size in bytes by rounds played, at *looks* even distances."""
    policy = ThroughputPolicy(3, profile=shipped_rounds.profile())
    rng = random.Random(0)
    batch, acceptance, last, found = 1, 0.5, -1, {}
    for done in range(1, rounds + 1):
        if done % 50 == 0:
            batch = rng.randint(1, LARGEST_BATCH)
        if done % 400 == 0:
            acceptance = rng.uniform(0.0, 0.95)
        steps = policy.get_steps_for_batch(batch)
        counts = [shipped_rounds.accepted(rng, steps, acceptance) for _ in range(batch)]
        seconds = (0.004 + SECONDS_A_STEP * steps) * shipped_rounds.noise(rng) if steps == last else None
        policy.observe(RoundObservation(steps, counts, batch, seconds))
        if policy.cost_sync_due:
            policy.import_cost(policy.export_cost())
        last = steps
        if done % (rounds // looks) == 0:
            found[done] = len(pickle.dumps(policy))
    return found


def main() -> int:
    """Print the sizes and, with ``--json``, write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = sizes(options.rounds)
    for done, size in found.items():
        print(f"{done:10,d} rounds  {size:8,d} bytes")
    if options.json:
        source = about([]) | {"command": " ".join(["python -m benchmarks.policy_memory", *sys.argv[1:]])}
        written = json.dumps({"provenance": source, "bytes_by_rounds": found}, indent=1)
        options.json.write_text(written + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
