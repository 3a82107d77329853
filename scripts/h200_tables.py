"""The tables of docs/performance.md that come from the server benchmark on an H200."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks is no part of the package

from benchmarks.server.compare import best_static, case_of, is_static, rates  # noqa: E402
from benchmarks.server.numbers import shares, summed_up  # noqa: E402
from benchmarks.server.results import read  # noqa: E402
from benchmarks.server.summary import targets  # noqa: E402

H200 = ROOT / "benchmarks" / "results" / "h200"
RUN, SIXTH, LATEST = H200 / "third-run", H200 / "sixth-run", H200 / "seventh-run"
FIRST_USES = (RUN / "after" / "first-use.json", LATEST / "first-use.json")
ZERO_STEPS = (LATEST / "zero-steps.json", LATEST / "zero-steps-again.json")
SWITCHING = LATEST / "switching.json"
STEADY = (LATEST / "steady.json", LATEST / "steady-again.json")
STARTS = [
    SIXTH / name
    for name in ("zero-steps.json", "more/zero-steps-again.json", "switching.json", "more/switching-again.json")
]
"""Servers that shared their GPU with none that started at the same time: what a depth takes is told by what is free."""
OURS, EMA = "throughput", "sglang-ema"
BATCHES = (1, 8, 32, 64)
SWITCHED = ("throughput", "sglang-ema", "static-1", "static-3", "static-5", "static-7")
TITLES = {"sglang-ema": "SGLang's EMA, stock server", "none": "no speculation"}
LATENCIES = {
    "time_to_first_token": ("p50_ms", "p95_ms"),
    "inter_token_latency": ("p50_ms", "p95_ms"),
    "latency": ("p50_ms", "p95_ms", "p99_ms"),
}


def reached() -> Iterator[str]:
    """Yield the targets, and what was measured of each in the third run and, where that is newer, in the latest."""
    before, cells = _measured(*sorted(RUN.glob("*.json"))), _measured(LATEST / "cells.json")
    mean, worst = "each cell's best static depth, geometric mean", "each cell's best static depth, worst"
    yield "| Target | Aim | Measured |\n|---|---|---|"
    for head, aim, part in (
        ("16 cells, geometric mean against each cell's best static depth", ">= 0.98", mean),
        ("worst of the 16 cells", ">= 0.95", worst),
    ):
        yield f"| {head} | {aim} | {_one(before, part)}; latest: {_one(cells, part)} |"
    switched = "acceptance and load switching against"
    rival, ema = "switching against best static", "switching against SGLang EMA"
    latest = _measured(SWITCHING)
    for head, aim, part in (("the best single depth", ">= 1.05", rival), ("SGLang's own EMA", ">= 1.25", ema)):
        told = f"{_one(before, part)}; latest: {_one(latest, part)}"
        yield f"| {switched} {head}, geometric mean | {aim} | {told} |"
    zero = "no speculation, batch {}"
    was, *now = (
        ", ".join(_one(one, zero.format(size)) for size in BATCHES) for one in (before, *map(_measured, ZERO_STEPS))
    )
    told = "; again: ".join(now)
    yield f"| zero steps against no speculation, batch 1, 8, 32, 64 | >= 0.985 | {was}; latest: {told} |"
    slower = "worst cell against no speculation"
    yield (
        "| worst cell against no speculation, any draft | >= 0.98 | "
        f"{_one(before, slower)}; latest, drafts always wrong: {_each(ZERO_STEPS, slower)} |"
    )
    first = [[row["first_over_second"] for row in _rows(path, "first use")] for path in FIRST_USES]
    told = "; latest: ".join(f"median {median(uses):.3f}, worst {min(uses):.3f}" for uses in first)
    passes = " and ".join(str(len(uses)) for uses in first)
    yield (
        f"| first use of a depth against its second, {passes} passes | loses < 1%, no late kernel load | {told}; "
        "no late load |"
    )
    built = [_built(path) for path in STARTS]
    seconds = ", ".join(f"{one['seconds']:.1f}" for one in built)
    [gigabytes] = {f"{one['gb']:.2f}" for one in built}
    yield f"| five depths beside the launch depth, four starts: seconds; GB | 13.5; 0.5 | {seconds}; {gigabytes} each |"
    runs = [{row["case"]["batch_size"]: row for row in _rows(path, "steady")} for path in STEADY]
    sizes = " and ".join(map(str, runs[0]))
    ratios = "; again: ".join(
        ", ".join(f"{row['itl_p95_against_static']:.3f}" for row in steady.values()) for steady in runs
    )
    yield f"| ITL p95 in steady load, against the same static depth, batch {sizes} | <= 1.02 | {ratios}: see below |"
    simulated = json.loads((RUN.parents[1] / "simulation" / "steady.json").read_text())
    hourly = [round(draw["switches_per_hour"]) for draw in simulated["draws"] if draw["batch_size"] in runs[0]]
    seen = "; again: ".join(
        " and ".join(f"{row['passes'][0]['switches']} in {row['seconds']:.0f} s" for row in steady.values())
        for steady in runs
    )
    hours = f"simulated hours: {min(hourly)} to {max(hourly)}, mean {fmean(hourly):.0f}"
    told = f"{seen}, probes included: see below; {hours}"
    yield f"| switches an hour in steady load, batch {sizes} | < 60 | {told} |"


def switching() -> Iterator[str]:
    """Yield tokens/s while acceptance or load switches, by contender, and ours against the others."""
    cases = [(f"batch {row['case']['batch_size']}", row) for row in _rows(SWITCHING, "acceptance")]
    cases += [("load", row) for row in _rows(SWITCHING, "load")]
    heads = list(dict.fromkeys(head for head, _ in cases))
    by = {(head, row["contender"]): row["tokens_per_second"] for head, row in cases}
    yield f"| | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}"
    for name in SWITCHED:
        yield f"| {_title(name)} | {' | '.join(f'{by[head, name]:.0f}' for head in heads)} |"
    best = [max(rate for (at, name), rate in by.items() if at == head and is_static(name)) for head in heads]
    rivals = {"the best single depth of each": best, "SGLang's EMA": [by[head, EMA] for head in heads]}
    for title, rates_of in rivals.items():
        over = [f"{by[head, OURS] / rate:.3f}" for head, rate in zip(heads, rates_of, strict=True)]
        yield f"| throughput over {title} | {' | '.join(over)} |"


def open_loop() -> Iterator[str]:
    """Yield latencies of Poisson arrivals."""
    yield "| Load | | TTFT p50 | p95 | ITL p50 | p95 | latency p50 | p95 | p99 |\n|---|---|---|---|---|---|---|---|---|"
    for row in _rows(RUN / "open.json", "open loop"):
        one = row["passes"][0]
        digits = {"inter_token_latency": 1}
        cells = [f"{one[what][key]:.{digits.get(what, 0)}f}" for what, keys in LATENCIES.items() for key in keys]
        yield f"| {row['case']['share']:.0%} | {_title(row['contender'])} | {' | '.join(cells)} |"


def cells() -> Iterator[str]:
    """Yield the README's table: shares of each cell's best static depth."""
    found = rates((row["contender"], row) for row in _rows(LATEST / "cells.json", "cells"))
    best = {case: rate for case, rate in best_static(found).items() if dict(case)["p"]}
    summed = {name: summed_up(shares(rate, best)) for name, rate in found.items()}
    single = max((name for name in summed if is_static(name)), key=lambda name: summed[name][0])
    names = {"`throughput` policy, untuned, no saved profile": OURS, f"best single depth ({single[-1]} steps)": single}
    yield "| | geometric mean | worst cell |\n|---|---|---|"
    for title, name in {**names, "zero steps, where nothing is drafted": "static-0"}.items():
        yield f"| {title} | {summed[name][0]:.3f} | {summed[name][1]:.3f} |"


def _measured(*paths: Path) -> dict[str, float | None]:
    documents = [read(path) for path in paths if path.name != "rounds.json"]
    return {one.what: one.value for one in targets(documents, OURS)}


def _each(paths: Sequence[Path], part: str) -> str:
    return " and ".join(_one(_measured(path), part) for path in paths)


def _one(measured: dict[str, float | None], part: str) -> str:
    [value] = [value for what, value in measured.items() if part in what]
    return f"{value:.3f}"


def _rows(path: Path, workload: str) -> Sequence[dict[str, Any]]:
    rows = [row for row in read(path)["rows"] if row["workload"] == workload]
    return sorted(rows, key=lambda row: str(case_of(row))) if workload == "open loop" else rows


def _built(path: Path) -> dict[str, float]:
    built: dict[str, float] = read(path)["servers"][OURS]["startup"]["tiers_total"]
    return built


def _title(name: str) -> str:
    return TITLES.get(name, f"{name[-1]} step{'s' * (name[-1] != '1')}" if is_static(name) else name)
