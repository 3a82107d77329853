"""What a look costs a scheduler: CPU time of taking the controller's state and encoding it for the HTTP process.

    python -m benchmarks.page_look

The controller has decided 2000 rounds of the throughput policy at batch sizes 1 to 64, at the round times of the
shipped H200 profile, and has switched more often than it remembers. SGLang encodes what processes tell each other as
msgpack with msgspec, and so does this. CPU time of this thread alone, so that other load on the machine does not count.
"""

from __future__ import annotations

import json
import random
import statistics
import time

import msgspec

from benchmarks import shipped_rounds
from sglang_adaptive import provenance
from sglang_adaptive.policy.throughput.policy import ThroughputPolicy
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.round_clock import RoundClock
from tests.live_controllers import controller

ROUNDS, LOOKS = 2000, 500
BATCHES = (1, 8, 32, 64)


def played() -> AdaptiveController:
    """Return a controller that has decided ROUNDS rounds."""
    profile = shipped_rounds.profile()
    seconds = shipped_rounds.seconds(profile)
    now = [0.0]
    found = controller(ThroughputPolicy(3, profile=profile), RoundClock(lambda: now[0]))
    rng = random.Random(0)
    for index in range(ROUNDS):
        batch, likely = BATCHES[index // 100 % len(BATCHES)], (0.3, 0.9)[index // 50 % 2]
        found.activate_step_by_batch(batch)
        steps = found.worker.speculative_num_steps
        now[0] += seconds[batch, steps] * shipped_rounds.noise(rng)
        accepted = [shipped_rounds.accepted(rng, steps, likely) for _ in range(batch)]
        found.on_verify_complete(accepted, batch)
    return found


def main() -> int:
    """Print the median CPU time of a look, as JSON."""
    looked_at = played()
    encode = msgspec.msgpack.Encoder().encode
    timed = []
    for _ in range(LOOKS):
        begin = time.thread_time_ns()
        message = encode(looked_at.snapshot().as_dict())
        timed.append((time.thread_time_ns() - begin) / 1e6)
    result = {
        "median_cpu_milliseconds": statistics.median(timed),
        "worst_cpu_milliseconds": max(timed),
        "bytes": len(message),
        "switches": looked_at.snapshot().switches,
        "cpu": provenance.cpu_model(),
        "commit": provenance.git_commit(),
    }
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
