"""Measure what decisions cost a scheduler, without an engine: round times of the shipped H200 profile, random text.

    python -m benchmarks.policy_overhead [--parts decision,memory,look,history] [--rounds N] [--batch N] [--json F]

decision   both calls of a round, ``choose`` and the one that learns from the round, compared with SGLang's
           own EMA policy on the same rounds; passing on the times is listed apart, because not every round does it
memory     size of the pickled policy, with every object that it keeps, while batch sizes and acceptance change
look       CPU time to copy the controller's state and encode it for the HTTP process, as for an open page
history    CPU time to add a round to a full hour, to price a second, and to read each time span; size in bytes

CPU times cover only this thread, so other load on the machine matters little.
"""

from __future__ import annotations

import argparse
import pickle
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness.results import command_parser, origin, write
from benchmarks.harness.start import names
from sglang_adaptive.policy.choice import Coming, drafted
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.profile import CostProfile, loads_profile, shipped_config
from sglang_adaptive.policy.throughput import ThroughputPolicy
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.history import HOUR, SPANS, History
from sglang_adaptive.runtime.round_times import RoundClock
from tests.fakes import controller

DEEPEST, ACCEPTANCE = 7, (0.75, 0.97)
"""Drafts of a drawn round, the first one's chance, and each next one's share of the previous chance."""

CLOCK_NOISE = 0.02
"""Standard deviation of the logarithm of a round's time."""

DRAWN_ROUNDS, WARMUP_ROUNDS = 512, 1000
MEMORY_ROUNDS, SIZES = 200_000, 10
LOOK_BATCHES, LOOK_ROUNDS, LOOKS_TIMED = (1, 8, 32, 64), 2000, 500
HOUR_BATCHES, HOUR_DEPTHS = (8, 64), (0, 1, 3, 5)


def profile() -> CostProfile:
    """Return the round times that were measured on an H200."""
    path = shipped_config("profiles/h200-llama31-8b-eagle3-fa3.json")
    return loads_profile(path.read_text(encoding="utf-8"), str(path))


def seconds_of(table: CostProfile) -> dict[tuple[int, int], float]:
    """Return the seconds of a round by batch size and steps."""
    return {(cell.batch_size, cell.steps): cell.seconds for cell in table.cells}


def noise(rng: random.Random) -> float:
    """Return the factor of clock noise for one round."""
    return rng.lognormvariate(0.0, CLOCK_NOISE)


def accepted(rng: random.Random, steps: int, likely: float, decay: float = 1.0) -> int:
    """Return how many of *steps* drafts are accepted: the first with probability *likely*, each next with *decay* times
    the previous probability."""
    return next((position for position in range(steps) if rng.random() >= likely * decay**position), steps)


# -- decision -------------------------------------------------------------------------------------------------------


def draw(batch: int) -> list[list[int]]:
    """Return the drafts that each request of *batch* would accept at unlimited depth, by round."""
    rng = random.Random(0)
    return [[accepted(rng, DEEPEST, *ACCEPTANCE) for _ in range(batch)] for _ in range(DRAWN_ROUNDS)]


def time_throughput(drawn: Sequence[list[int]], batch: int, rounds: int) -> dict[str, list[float]]:
    """Return nanoseconds of each round, and of each hand-over."""
    table = profile()
    seconds, rng = seconds_of(table), random.Random(1)
    policy = ThroughputPolicy(3, profile=table)
    timed, handed = [], []
    requests = [f"request {index}" for index in range(batch)]
    last = -1
    for index in range(rounds + WARMUP_ROUNDS):
        start = time.perf_counter_ns()
        choice = policy.choose(Coming(batch))
        spent, steps = time.perf_counter_ns() - start, choice.steps
        counts = [min(steps, count) for count in drawn[index % len(drawn)]]
        clock = seconds[batch, steps] * noise(rng) if steps == last else None
        last = steps
        observation = RoundObservation(choice, counts, batch, clock, requests=requests)
        start = time.perf_counter_ns()
        policy.observe(observation)
        spent += time.perf_counter_ns() - start
        timed.append(spent)
        if policy.cost_sync_due:
            start = time.perf_counter_ns()
            policy.import_cost(policy.export_cost())
            handed.append(time.perf_counter_ns() - start)
    return {"throughput": timed[WARMUP_ROUNDS:], "throughput hand-over": handed}


def time_sglang(drawn: Sequence[list[int]], batch: int, rounds: int) -> list[float]:
    """Return nanoseconds of each round of SGLang's own policy with its built-in configuration."""
    from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams

    policy, timed = AdaptiveSpeculativeParams(initial_steps=3, cfg_path=None), []
    for index in range(rounds + WARMUP_ROUNDS):
        start = time.perf_counter_ns()
        steps = policy.get_steps_for_batch(batch)
        spent = time.perf_counter_ns() - start
        counts = [min(steps, count) for count in drawn[index % len(drawn)]]
        start = time.perf_counter_ns()
        policy.on_verify_complete(counts, batch)
        timed.append(spent + time.perf_counter_ns() - start)
    return timed[WARMUP_ROUNDS:]


def decision(given: argparse.Namespace) -> dict[str, Any]:
    """Return median, p99 and worst microseconds of a decision and of a hand-over, by policy."""
    drawn = draw(given.batch)
    timed = time_throughput(drawn, given.batch, given.rounds)
    timed["SGLang EMA"] = time_sglang(drawn, given.batch, given.rounds)
    found = {}
    for name, values in timed.items():
        ordered = sorted(values)
        median, p99 = statistics.median(ordered) / 1e3, ordered[int(0.99 * len(ordered))] / 1e3
        found[name] = {"median_us": median, "p99_us": p99, "worst_us": ordered[-1] / 1e3, "rounds": len(ordered)}
        print(f"{name:20s} median {median:7.2f}  p99 {p99:7.2f}  microseconds  ({len(ordered)} calls)", flush=True)
    return {"policies": found, "batch": given.batch}


# -- what is held, and what is asked for ----------------------------------------------------------------------------


def memory(given: argparse.Namespace) -> dict[str, Any]:
    """Return the policy's size in bytes by rounds played, while batch size and acceptance keep changing."""
    policy, rng = ThroughputPolicy(3, profile=profile()), random.Random(0)
    batch, likely, last, found = 1, 0.5, -1, {}
    for done in range(1, MEMORY_ROUNDS + 1):
        if done % 50 == 0:
            batch = rng.randint(1, 64)
        if done % 400 == 0:
            likely = rng.uniform(0.0, 0.95)
        steps = policy.choose(Coming(batch)).steps
        counts = [accepted(rng, steps, likely) for _ in range(batch)]
        seconds = (0.004 + 0.0002 * steps) * noise(rng) if steps == last else None
        policy.observe(RoundObservation(drafted(steps), counts, batch, seconds))
        if policy.cost_sync_due:
            policy.import_cost(policy.export_cost())
        last = steps
        if done % (MEMORY_ROUNDS // SIZES) == 0:
            found[done] = len(pickle.dumps(policy))
    print(f"pickled policy after {MEMORY_ROUNDS:,} rounds: {found[MEMORY_ROUNDS]:,} bytes", flush=True)
    return {"bytes_by_rounds": found}


def played() -> AdaptiveController:
    """Return a controller that has decided LOOK_ROUNDS rounds, with more switches than it remembers."""
    table, now, rng = profile(), [0.0], random.Random(0)
    seconds = seconds_of(table)
    found = controller(ThroughputPolicy(3, profile=table), RoundClock(lambda: now[0]))
    for index in range(LOOK_ROUNDS):
        batch, likely = LOOK_BATCHES[index // 100 % len(LOOK_BATCHES)], (0.3, 0.9)[index // 50 % 2]
        found.choose(batch)
        steps = found.states.live.steps
        now[0] += seconds[batch, steps] * noise(rng)
        found.verified([accepted(rng, steps, likely) for _ in range(batch)], batch)
    return found


def look(given: argparse.Namespace) -> dict[str, Any]:
    """Return the milliseconds of a look. SGLang encodes messages between processes with msgspec; so does this."""
    looked_at, encode = played(), msgspec.msgpack.Encoder().encode
    times = [_microseconds(lambda: encode(looked_at.snapshot())) / 1e3 for _ in range(LOOKS_TIMED)]
    size = len(encode(looked_at.snapshot()))
    found = {"median_cpu_milliseconds": statistics.median(times), "worst_cpu_milliseconds": max(times), "bytes": size}
    print(f"look: {found}", flush=True)
    return {"look": found}


def history(given: argparse.Namespace) -> dict[str, Any]:
    """Return the medians for an hour whose seconds each have rounds of two batch sizes at four depths."""
    tracemalloc.start()
    kept = [_hour()[2]]
    before = tracemalloc.get_traced_memory()[0]
    kept.clear()
    held = before - tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    added, closed, whole = _hour()
    encode = msgspec.msgpack.Encoder().encode
    looks = {
        str(span): [_microseconds(lambda span=span: encode(whole.span(span))) for _ in range(200)]  # type: ignore[misc]
        for span in SPANS
    }
    found = {
        "add_microseconds": {f"batch {batch}": statistics.median(times) for batch, times in added.items()},
        "price_a_second_microseconds": statistics.median(closed),
        "look_microseconds": {span: statistics.median(times) for span, times in looks.items()},
        "look_bytes": {str(span): len(encode(whole.span(span))) for span in SPANS},
        "kilobytes_of_an_hour": held / 1000,
    }
    print(f"history: {found}", flush=True)
    return {"history": found}


def _hour() -> tuple[dict[int, list[float]], list[float], History]:
    """Return microseconds of every addition by batch size and of every pricing, and the history."""
    priced, now, rng = played(), [0.0], random.Random(0)
    found = History(priced.states.tiers, lambda: now[0])
    added: dict[int, list[float]] = {batch: [] for batch in HOUR_BATCHES}
    closed = []
    for _ in range(HOUR + 100):
        for batch in HOUR_BATCHES:
            for steps in HOUR_DEPTHS:
                seen = RoundObservation(drafted(steps), [rng.randint(0, steps) for _ in range(batch)], batch, 0.01)
                added[batch].append(_microseconds(lambda seen=seen: found.add(seen)))  # type: ignore[misc]
        now[0] += 1.0
        closed.append(_microseconds(lambda: found.close(priced.policy)))
    return added, closed, found


def _microseconds(act: Callable[[], object]) -> float:
    begin = time.thread_time_ns()
    act()
    return (time.thread_time_ns() - begin) / 1e3


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "decision": decision, "memory": memory, "look": look, "history": history,
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Print the figures and, with ``--json``, write them."""
    given = parser().parse_args(argv)
    found: dict[str, Any] = {"provenance": origin("policy_overhead", argv)}
    for name in given.parts:
        found |= PARTS[name](given)
        if given.json:
            write(given.json, found)
    return 0


def parser() -> argparse.ArgumentParser:
    made = command_parser("policy_overhead", __doc__)
    made.add_argument("--parts", type=names, default=list(PARTS), help=f"from {', '.join(PARTS)} (default: all)")
    made.add_argument("--rounds", type=int, default=50_000, help="rounds of decision")
    made.add_argument("--batch", type=int, default=64)
    made.add_argument("--json", type=Path, metavar="F")
    return made


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
