"""What a decision costs: both calls of a round, at batch 64, beside SGLang's own EMA policy on the same rounds.

    python -m benchmarks.policy_overhead [--rounds N] [--batch N] [--json F]

A round is ``get_steps_for_batch`` and then the call that learns from it. Rounds are drawn before the clock starts:
acceptance 0.75 falling by 0.97 a position, every depth from the policy itself, times from the shipped H200 profile
with 2% of noise. The hand-over of times (``export_cost`` and ``import_cost``) is timed apart: on a server it is not
part of every round.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import shipped_rounds
from sglang_adaptive.policy.config.throughput_options import DEFAULT_LADDER, ThroughputOptions
from sglang_adaptive.policy.observation import BudgetEvidence, RoundObservation
from sglang_adaptive.policy.throughput.policy import ThroughputPolicy
from sglang_adaptive.runtime.look_turns import LOOKS, budgets_seen
from sglang_adaptive.simulate.provenance import about

DEEPEST = 7
ACCEPTANCE = (0.75, 0.97)
DRAWN_ROUNDS = 512
WARMUP_ROUNDS = 1000


def draw(batch: int) -> list[list[int]]:
    """Return the drafts that each request of *batch* would accept at unlimited depth, by round."""
    rng = random.Random(0)
    return [[shipped_rounds.accepted(rng, DEEPEST, *ACCEPTANCE) for _ in range(batch)] for _ in range(DRAWN_ROUNDS)]


def evidence(raw: Sequence[int], steps: int, budget: int | None) -> BudgetEvidence | None:
    """Return what a look at the round says, where a budget saves 60% of what a uniform cut loses."""
    budgets = budgets_seen(DEFAULT_LADDER, steps, budget)
    if not budgets:
        return None
    whole, *uniform = (sum(min(count, cut) for count in raw) for cut in (steps, *budgets))
    ranked = [cut + round(0.6 * (whole - cut)) for cut in uniform]
    return BudgetEvidence(steps, whole, *(dict(zip(budgets, found, strict=True)) for found in (ranked, uniform)))


def time_throughput(
    drawn: Sequence[list[int]], batch: int, rounds: int, budgets: bool = False
) -> dict[str, list[float]]:
    """Return nanoseconds of each round, and of each hand-over."""
    profile = shipped_rounds.profile()
    seconds = shipped_rounds.seconds(profile)
    policy, rng = ThroughputPolicy(3, ThroughputOptions(verify_budget=budgets), profile), random.Random(1)
    policy.allow_budgets(True)
    name = "throughput, budgets" if budgets else "throughput"
    timed, handed = [], []
    requests = [f"request {index}" for index in range(batch)]
    last: tuple[int, int | None] = -1, None
    for index in range(rounds + WARMUP_ROUNDS):
        raw = drawn[index % len(drawn)]
        start = time.perf_counter_ns()
        steps = policy.get_steps_for_batch(batch)
        spent = time.perf_counter_ns() - start
        counts = [min(steps, count) for count in raw]
        place = steps, policy.budget
        took = seconds[batch, steps if policy.budget is None else policy.budget]
        clock = took * shipped_rounds.noise(rng) if place == last else None
        last = place
        observation = RoundObservation(steps, counts, batch, clock, requests=requests)
        if budgets:
            observation.budget, observation.completed = policy.budget, counts
            observation.evidence = None if index % LOOKS else evidence(raw, steps, policy.budget)
        start = time.perf_counter_ns()
        policy.observe(observation)
        spent += time.perf_counter_ns() - start
        timed.append(spent)
        if policy.cost_sync_due:
            start = time.perf_counter_ns()
            policy.import_cost(policy.export_cost())
            handed.append(time.perf_counter_ns() - start)
    return {name: timed[WARMUP_ROUNDS:], f"{name} hand-over": handed}


def time_sglang(drawn: Sequence[list[int]], batch: int, rounds: int, make: Callable[[], Any]) -> list[float]:
    """Return nanoseconds of each round of a policy that has SGLang's own two calls."""
    policy = make()
    timed = []
    for index in range(rounds + WARMUP_ROUNDS):
        raw = drawn[index % len(drawn)]
        start = time.perf_counter_ns()
        steps = policy.get_steps_for_batch(batch)
        spent = time.perf_counter_ns() - start
        counts = [min(steps, count) for count in raw]
        start = time.perf_counter_ns()
        policy.on_verify_complete(counts, batch)
        timed.append(spent + time.perf_counter_ns() - start)
    return timed[WARMUP_ROUNDS:]


def sglang_ema() -> Any:
    """Return SGLang's own policy with its built-in config."""
    from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams

    return AdaptiveSpeculativeParams(initial_steps=3, cfg_path=None)


def summary(nanoseconds: Sequence[float]) -> dict[str, float]:
    """Return median, p99, worst and count, in microseconds."""
    ordered = sorted(nanoseconds)
    return {
        "median_us": statistics.median(ordered) / 1e3,
        "p99_us": ordered[int(0.99 * len(ordered))] / 1e3,
        "worst_us": ordered[-1] / 1e3,
        "rounds": len(ordered),
    }


def main() -> int:
    """Print the table and, with ``--json``, write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    drawn = draw(options.batch)
    timed = time_throughput(drawn, options.batch, options.rounds)
    timed |= time_throughput(drawn, options.batch, options.rounds, budgets=True)
    timed["SGLang EMA"] = time_sglang(drawn, options.batch, options.rounds, sglang_ema)
    result = {name: summary(values) for name, values in timed.items()}
    for name, row in result.items():
        figures = f"median {row['median_us']:7.2f}  p99 {row['p99_us']:7.2f}  worst {row['worst_us']:8.2f}"
        print(f"{name:29s} {figures}  microseconds  ({row['rounds']} calls)")
    if options.json:
        command = " ".join(["python -m benchmarks.policy_overhead", *sys.argv[1:]])
        source = about([]) | {"command": command, "batch": options.batch}
        written = json.dumps({"provenance": source, "policies": result}, indent=1)
        options.json.write_text(written + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
