"""The tables of docs/performance.md that come from the server benchmark on an H200."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks is no part of the package

from benchmarks.server.compare import best_static, case_of, is_static, rates  # noqa: E402
from benchmarks.server.numbers import shares, summed_up  # noqa: E402
from benchmarks.server.results import read, read_folder  # noqa: E402
from benchmarks.server.summary import targets  # noqa: E402

H200 = ROOT / "benchmarks" / "results" / "h200"
ZERO_STEPS = {
    "servers in turn": H200 / "zero-steps-in-turn",
    "in turn, another GPU": H200 / "zero-steps-in-turn-second-gpu",
    "side by side on one GPU": H200 / "zero-steps.json",
}
"""By how the servers that are compared share a GPU."""

SWITCHING = H200 / "switching.json"
ARRIVALS = H200 / "arrivals.json"
STEADY = (H200 / "steady-8.json", H200 / "steady-32.json")
STARTED = H200 / "zero-steps-in-turn" / "throughput.json"
OURS, EMA = "throughput", "sglang-ema"
BATCHES = (1, 8, 32, 64)
SWITCHED = ("throughput", "sglang-ema", "static-3", "static-5", "static-7")
TITLES = {"sglang-ema": "SGLang's EMA, stock server", "none": "no speculation"}
LATENCIES = {
    "time_to_first_token": ("p50_ms", "p95_ms"),
    "inter_token_latency": ("p50_ms", "p95_ms"),
    "latency": ("p50_ms", "p95_ms", "p99_ms"),
}


def reached() -> Iterator[str]:
    """Yield the targets and what was measured."""
    cells, switched = _measured(H200 / "cells.json"), _measured(SWITCHING)
    yield "| Target | Aim | Measured |\n|---|---|---|"
    against = "acceptance and load switching against"
    for head, aim, part, found in (
        ("16 cells, geometric mean against each cell's best static depth", ">= 0.98", "depth, geometric mean", cells),
        ("worst of the 16 cells", ">= 0.95", "depth, worst", cells),
        (f"{against} the best single depth, geometric mean", ">= 1.05", "against the best single depth", switched),
        (f"{against} each case's best depth, known beforehand", "", "against each case's best depth", switched),
        (f"{against} SGLang's own EMA, geometric mean", ">= 1.25", "switching against SGLang EMA", switched),
    ):
        yield f"| {head} | {aim} | {_one(found, part)} |"
    ways = {how: _measured(path) for how, path in ZERO_STEPS.items()}
    for how, found in ways.items():
        head = f"zero steps against no speculation, batch {', '.join(map(str, BATCHES))}; {how}"
        yield f"| {head} | >= 0.985 | {_over_none(found)} |"
    worst = ", ".join(_one(found, "worst cell against no speculation") for found in ways.values())
    yield f"| worst cell against no speculation, drafts always wrong; by the same three ways | >= 0.98 | {worst} |"
    lost = [row["first_over_second"] for row in _rows(H200 / "first-use.json", "first use")]
    head = f"first use of a depth against its second, {len(lost)} passes"
    yield f"| {head} | loses < 1% | median {median(lost):.3f}, worst {min(lost):.3f} |"
    yield f"| five depths beside the launch depth: seconds; GB | 13.5; 0.5 | {_built(STARTED)} |"
    yield from _steady()


def _steady() -> Iterator[str]:
    steady = _by_batch(*STEADY)
    sizes = " and ".join(map(str, steady))
    ratios = ", ".join(f"{row['itl_p95_against_static']:.3f}" for row in steady.values())
    yield f"| ITL p95 in steady load, against the same static depth, batch {sizes} | <= 1.02 | {ratios} |"
    changes = " and ".join(f"{row['passes'][0]['switches']} in {row['seconds']:.0f} s" for row in steady.values())
    hourly = " and ".join(f"{row['switches_per_hour']:.0f}" for row in steady.values())
    head = f"switches in steady load, batch {sizes}, probes included; an hour, without the first minute"
    yield f"| {head} | < 60 an hour | {changes}; {hourly} |"


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
    """Yield latencies of Poisson arrivals, the mean of the passes."""
    yield "| Load | | TTFT p50 | p95 | ITL p50 | p95 | latency p50 | p95 | p99 |\n|---|---|---|---|---|---|---|---|---|"
    for row in _rows(ARRIVALS, "open loop"):
        digits = {"inter_token_latency": 1}
        cells = [
            f"{fmean(one[what][key] for one in row['passes']):.{digits.get(what, 0)}f}"
            for what, keys in LATENCIES.items()
            for key in keys
        ]
        yield f"| {row['case']['share']:.0%} | {_title(row['contender'])} | {' | '.join(cells)} |"


def cells() -> Iterator[str]:
    """Yield shares of each cell's best static depth."""
    found = rates((row["contender"], row) for row in _rows(H200 / "cells.json", "cells"))
    best = {case: rate for case, rate in best_static(found).items() if dict(case)["p"]}
    summed = {name: summed_up(shares(rate, best)) for name, rate in found.items()}
    single = max((name for name in summed if is_static(name)), key=lambda name: summed[name][0])
    names = {"`throughput` policy, untuned, no saved profile": OURS, f"best single depth ({single[-1]} steps)": single}
    yield "| | geometric mean | worst cell |\n|---|---|---|"
    for title, name in {**names, "zero steps, where nothing is drafted": "static-0"}.items():
        yield f"| {title} | {summed[name][0]:.3f} | {summed[name][1]:.3f} |"


def _measured(path: Path) -> dict[str, float | None]:
    """Return the targets of a result, or of a folder of them taken together."""
    documents = read_folder(path) if path.is_dir() else [read(path)]
    return {one.what: one.value for one in targets(documents, OURS)}


def _over_none(measured: dict[str, float | None]) -> str:
    return ", ".join(_one(measured, f"no speculation, batch {size}") for size in BATCHES)


def _by_batch(*paths: Path) -> dict[int, dict[str, Any]]:
    return {row["case"]["batch_size"]: row for path in paths for row in _rows(path, "steady")}


def _value(measured: dict[str, float | None], part: str) -> float:
    [value] = [value for what, value in measured.items() if part in what and value is not None]
    return value


def _one(measured: dict[str, float | None], part: str) -> str:
    return f"{_value(measured, part):.3f}"


def _rows(path: Path, workload: str) -> Sequence[dict[str, Any]]:
    rows = [row for row in read(path)["rows"] if row["workload"] == workload]
    return sorted(rows, key=lambda row: str(case_of(row))) if workload == "open loop" else rows


def _built(path: Path) -> str:
    """Return seconds and GB; beside another server that starts on the GPU the latter cannot be told."""
    startup = read(path)["servers"][OURS]["startup"]
    gigabytes = f"{startup['tiers_total']['gb']:.2f}" if startup["alone"] else "not told"
    return f"{startup['tiers_total']['seconds']:.1f}; {gigabytes}"


def _title(name: str) -> str:
    return TITLES.get(name, f"{name[-1]} step{'s' * (name[-1] != '1')}" if is_static(name) else name)
