"""The tables of docs/performance.md that come from the server benchmark on an H200."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks is no part of the package

from benchmarks.server.compare import best_static, case_of, is_static, rates  # noqa: E402
from benchmarks.server.numbers import shares, summed_up  # noqa: E402
from benchmarks.server.results import read  # noqa: E402
from benchmarks.server.summary import targets  # noqa: E402

H200 = ROOT / "benchmarks" / "results" / "h200"
RUN, LATEST = H200 / "third-run", H200 / "fifth-run"
FIRST_USES = (RUN / "after" / "first-use.json", LATEST / "first-use.json")
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
    before, after = _measured(RUN), _measured(LATEST)
    mean, worst = "each cell's best static depth, geometric mean", "each cell's best static depth, worst"
    yield "| Target | Aim | Measured |\n|---|---|---|"
    yield f"| 16 cells, geometric mean against each cell's best static depth | >= 0.98 | {_one(before, mean)} |"
    yield f"| worst of the 16 cells | >= 0.95 | {_one(before, worst)} |"
    switched = "acceptance and load switching against"
    for rival, aim, of in (
        ("best static", ">= 1.05", "the best single depth of 1, 3, 5 and 7"),
        ("SGLang EMA", ">= 1.25", "SGLang's own EMA"),
    ):
        yield f"| {switched} {of}, geometric mean | {aim} | {_one(before, f'switching against {rival}')} |"
    zero = [", ".join(_one(one, f"no speculation, batch {size}") for size in BATCHES) for one in (before, after)]
    yield f"| zero steps against no speculation, batch 1, 8, 32, 64 | >= 0.985 | {zero[0]}; latest: {zero[1]} |"
    slower = [_one(one, "worst cell against no speculation") for one in (before, after)]
    yield f"| worst cell against no speculation, any draft | >= 0.98 | {slower[0]}; latest: {slower[1]} |"
    first = [[row["first_over_second"] for row in _rows(path, "first use")] for path in FIRST_USES]
    told = "; latest: ".join(f"median {median(uses):.3f}, worst {min(uses):.3f}" for uses in first)
    passes = " and ".join(str(len(uses)) for uses in first)
    yield (
        f"| first use of a depth against its second, {passes} passes | loses < 1%, no late kernel load | {told}; "
        "no late load |"
    )
    built = [_built("after", name) for name in ("cells", "first-use")]
    shown = [" and ".join(f"{one[key]:.1f}" for one in built) for key in ("seconds", "gb")]
    yield f"| five depths beside the launch depth, two starts: seconds; GB | 13.5; 0.5 | {shown[0]}; {shown[1]} |"
    steady = {row["case"]["batch_size"]: row for row in _rows(LATEST / "steady.json", "steady")}
    sizes = " and ".join(map(str, steady))
    ratios = ", ".join(f"{row['itl_p95_against_static']:.3f}" for row in steady.values())
    yield f"| ITL p95 in steady load, against the same static depth, batch {sizes} | <= 1.02 | {ratios} |"
    simulated = json.loads((RUN.parents[1] / "simulation" / "steady.json").read_text())
    hourly = [round(draw["switches_per_hour"]) for draw in simulated["draws"]]
    seen = " and ".join(f"{row['passes'][0]['switches']} in {row['seconds']:.0f} s" for row in steady.values())
    told = f"{seen}, probes included; simulated hours: {min(hourly)} to {max(hourly)}"
    yield f"| switches an hour in steady load, batch {sizes} | < 60 | {told} |"


def switching() -> Iterator[str]:
    """Yield tokens/s while acceptance or load switches, by contender, and ours against the others."""
    cases = [(f"batch {row['case']['batch_size']}", row) for row in _rows(RUN / "switching.json", "acceptance")]
    cases += [("load", row) for row in _rows(RUN / "switching.json", "load")]
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
    found = rates((row["contender"], row) for row in _rows(RUN / "cells.json", "cells"))
    best = {case: rate for case, rate in best_static(found).items() if dict(case)["p"]}
    summed = {name: summed_up(shares(rate, best)) for name, rate in found.items()}
    single = max((name for name in summed if is_static(name)), key=lambda name: summed[name][0])
    names = {"`throughput` policy, untuned, no saved profile": OURS, f"best single depth ({single[-1]} steps)": single}
    yield "| | geometric mean | worst cell |\n|---|---|---|"
    for title, name in {**names, "no speculation": "none"}.items():
        yield f"| {title} | {summed[name][0]:.3f} | {summed[name][1]:.3f} |"


def _measured(folder: Path) -> dict[str, float | None]:
    documents = [read(path) for path in sorted(folder.glob("*.json")) if path.name != "rounds.json"]
    return {one.what: one.value for one in targets(documents, OURS)}


def _one(measured: dict[str, float | None], part: str) -> str:
    [value] = [value for what, value in measured.items() if part in what]
    return f"{value:.3f}"


def _rows(path: Path, workload: str) -> Sequence[dict[str, Any]]:
    rows = [row for row in read(path)["rows"] if row["workload"] == workload]
    return sorted(rows, key=lambda row: str(case_of(row))) if workload == "open loop" else rows


def _built(folder: str, name: str) -> dict[str, float]:
    document = json.loads((RUN / folder / f"{name}.json").read_text())
    built: dict[str, float] = document["servers"][OURS]["startup"]["tiers_total"]
    return built


def _title(name: str) -> str:
    return TITLES.get(name, f"{name[-1]} step{'s' * (name[-1] != '1')}" if is_static(name) else name)
