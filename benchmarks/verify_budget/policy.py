"""The policy that chooses budgets, on recorded text. `python -m benchmarks.verify_budget.policy [--out FOLDER]`.

Beside it plays the same policy with rectangles alone, both against the best uniform depth in hindsight.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.verify_budget.__main__ import FOLDER, GPU_COST, MEASURED, _profiles, _with_and_without_loops
from benchmarks.verify_budget.policy_loop import LADDER, Outcome, Uniform, run, throughput, true_seconds
from benchmarks.verify_budget.prices import Prices
from sglang_adaptive.provenance import cpu_model, git_commit, versions
from sglang_adaptive.traces import Trace, read

BATCHES = (4, 8, 16, 32, 64, 128)
SEEDS = (0, 1)
TOKENS_A_REQUEST = 6_000
"""Tokens of a run for each place of the batch: some 2,500 rounds of greedy text."""
IN_TURN = "greedy text and temperature 1 in turn"
STARTS = {"from a profile": True, "from nothing": False}
"""Whether the policy begins with the measured rounds as its profile."""


def scenes() -> dict[str, tuple[Trace, int]]:
    """Return the traces by name, each with the number of its parts that are served in turn."""
    found: dict[str, tuple[Trace, int]] = {}
    for path in sorted((FOLDER / "traces").glob("smollm2-*.npz")):
        found |= {name: (trace, 1) for name, trace in _with_and_without_loops(path.stem, read(path)).items()}
    greedy, sampled = found["smollm2-greedy-without-repetitions"][0], found["smollm2-sampled"][0]
    fields = {name: np.concatenate([getattr(greedy, name), getattr(sampled, name)]) for name in _ARRAYS}
    both = replace(greedy, category=greedy.category + sampled.category, **fields)
    return {**found, IN_TURN: (both, 2)}


_ARRAYS = ("length", "loop_start", "accepted", "confidence")


def cells(trace: Trace, parts: int, batch: int, profiles: Mapping[str, Prices]) -> Iterator[dict[str, Any]]:
    """Yield what each profile came to at *batch*, as JSON builtins."""
    tokens = TOKENS_A_REQUEST * batch
    free = dict.fromkeys(((s, b) for s in LADDER for b in LADDER), 0.0)
    uniform = {
        steps: [run(Uniform(steps), trace, batch, tokens, free, seed, parts) for seed in SEEDS] for steps in LADDER[1:]
    }
    for name, prices in profiles.items():
        seconds = true_seconds(prices, batch)
        rates = {steps: [one.rate(seconds) for one in runs] for steps, runs in uniform.items()}
        rates[0] = [batch / seconds[0, 0]] * len(SEEDS)
        best = max(rates, key=lambda steps: fmean(rates[steps]))
        cell: dict[str, Any] = {"profile": name, "batch": batch, "measured": prices.measured(batch, 0), "best": best}
        for start, profiled in STARTS.items():
            runs = {
                budgets: [
                    run(throughput(prices if profiled else None, budgets), trace, batch, tokens, seconds, seed, parts)
                    for seed in SEEDS
                ]
                for budgets in (False, True)
            }
            cell[start] = _compared(runs, seconds, rates[best])
        yield cell


def _compared(
    runs: Mapping[bool, list[Outcome]], seconds: dict[tuple[int, int], float], single: Sequence[float]
) -> dict[str, Any]:
    rates = {budgets: [one.rate(seconds) for one in found] for budgets, found in runs.items()}
    rounds = sum((one.rounds for one in runs[True]), start=type(runs[True][0].rounds)())
    return {
        "rectangles": fmean(rate / other for rate, other in zip(rates[False], single, strict=True)),
        "budgets": fmean(rate / other for rate, other in zip(rates[True], single, strict=True)),
        "ratio": fmean(rate / other for rate, other in zip(rates[True], rates[False], strict=True)),
        "worst": min(rate / other for rate, other in zip(rates[True], rates[False], strict=True)),
        "verified": sum(b * count for (_, b), count in rounds.items()) / rounds.total(),
        "places": [[*place, count] for place, count in rounds.most_common(3)],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Play everything and write one JSON file."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verify_budget.policy", description=__doc__)
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)), metavar="N,N,...")
    parser.add_argument("--out", type=Path, default=FOLDER / "results" / "verify_budget" / "policy")
    options = parser.parse_args(words)
    measured = [path.stem for path in GPU_COST.glob("*.json")]
    profiles = {n.removesuffix(MEASURED): p for n, p in _profiles().items() if n.endswith(MEASURED)}
    assert measured and profiles
    begun, found = time.monotonic(), []
    for name, (trace, parts) in scenes().items():
        for batch in map(int, options.batches.split(",")):
            found += [{"trace": name, **cell} for cell in cells(trace, parts, batch, profiles)]
            print(f"{time.monotonic() - begun:.0f} s  {name}, batch {batch}", file=sys.stderr, flush=True)
    report = {
        "command": shlex.join(["python", "-m", "benchmarks.verify_budget.policy", *words]),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": git_commit(),
        "versions": versions("numpy", "scipy"),
        "cpu": cpu_model(),
        "note": "Acceptance and confidence are replayed from a trace; rounds without a budget were measured on a GPU, "
        "those with one are modelled from them and from measured drafts and packing.",
        "cells": found,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "policy.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
