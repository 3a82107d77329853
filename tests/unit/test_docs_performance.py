"""What docs/performance.md says of the second run on an H200, and of costs, is what its raw data says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = " ".join((ROOT / "docs" / "performance.md").read_text().split())
RUN = RESULTS / "h200" / "second-run"
STATIC = ("static-0", "static-1", "static-2", "static-3", "static-5", "static-7")
Cases = dict[tuple[int, float | None], dict[str, float]]


def results(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def rates(name: str, workload: str) -> Cases:
    """Return tokens/s by (batch size, p), and there by contender."""
    found: Cases = {}
    for row in json.loads((RUN / name).read_text())["rows"]:
        if row["workload"] == workload:
            p = row["case"]["p"]
            case = row["case"]["batch_size"], p if isinstance(p, float | None) else 0.0
            found.setdefault(case, {})[row["contender"]] = row["tokens_per_second"]
    return found


def told(shares: list[float]) -> tuple[str, str]:
    return f"{geometric_mean(shares):.3f}", f"{min(shares):.3f}"


def test_cells() -> None:
    cells = rates("cells.json", "cells")
    common = {batch: by for (batch, p), by in cells.items() if p is None}  # what does not depend on p ran once
    every = {(batch, p): {**common[batch], **by} for (batch, p), by in cells.items() if p is not None}
    sixteen = {case: by for case, by in every.items() if case[1]}
    assert len(sixteen) == 16

    def against_the_best(contender: str) -> list[float]:
        return [by[contender] / max(by[name] for name in STATIC) for by in sixteen.values()]

    mean, worst = told(against_the_best("throughput"))
    assert f"each cell's best static depth | >= 0.98 | {mean} |" in PAGE
    assert f"| worst of the 16 cells | >= 0.95 | {worst} |" in PAGE
    singles = {name: told(against_the_best(name)) for name in STATIC}
    assert max(singles, key=lambda name: singles[name]) == "static-3"
    (mean, worst), (none, worst_of_none) = singles["static-3"], singles["static-0"]
    assert f"3 steps, the best single depth, has {mean} over the 16 cells (worst {worst})" in PAGE
    assert f"and 0 steps {none} ({worst_of_none})" in PAGE
    low = sorted(against_the_best("throughput"))[:3]
    assert all(f"{share:.3f}" in PAGE for share in low)
    zero = ", ".join(f"{by['static-0'] / by['none']:.3f}" for _, by in sorted(common.items()))
    assert f"batch 1, 8, 32, 64 | >= 0.985 | {zero} |" in PAGE
    least = min(by["throughput"] / by["none"] for by in every.values())
    assert f"no speculation, any draft | >= 0.98 | {least:.3f} |" in PAGE


def test_first_use_and_start_up() -> None:
    rows = json.loads((RUN / "cells.json").read_text())
    lost = [1.0 - row["first_over_second"] for row in rows["rows"] if row["workload"] == "first use"]
    assert f"worst of {len(lost)}: loses {max(lost):.0%}; median: none" in PAGE and abs(median(lost)) < 0.005
    seconds = rows["servers"]["throughput"]["startup"]["tiers_total"]["seconds"]
    assert f"at start-up, seconds | 13.5 | {seconds:.1f} |" in PAGE


def test_switching() -> None:
    cells = rates("switching.json", "acceptance")
    by_batch = {batch: by for (batch, _), by in sorted(cells.items(), key=lambda item: item[0][0])}

    def over(rivals: tuple[str, ...]) -> str:
        shares = {b: by["throughput"] / max(by[name] for name in rivals) for b, by in by_batch.items()}
        return "batch " + ", ".join(f"{batch}: {share:.3f}" for batch, share in shares.items())

    assert f">= 1.05 | {over(('static-1', 'static-3', 'static-5'))} |" in PAGE
    assert f">= 1.25 | {over(('sglang-ema',))} |" in PAGE
    titles = {"SGLang's EMA, stock server": "sglang-ema", "throughput": "throughput"}
    titles |= {"1 step": "static-1", "3 steps": "static-3", "5 steps": "static-5"}
    for title, name in titles.items():
        row = " | ".join(f"{by[name]:.0f}" for by in by_batch.values())
        assert f"| {title} | {row} |" in PAGE


def test_costs() -> None:
    policies = results("policy/overhead.json")["policies"]
    ours, theirs, sync = policies["throughput"], policies["SGLang EMA"], policies["throughput hand-over"]
    assert f"median {ours['median_us']:.1f} us, p99 {ours['p99_us']:.0f} us" in PAGE
    assert f"(SGLang's EMA: {theirs['median_us']:.1f} us, {theirs['p99_us']:.1f} us)" in PAGE
    assert f"median {sync['median_us']:.0f} us, p99 {sync['p99_us']:.0f} us" in PAGE
    size = results("policy/memory.json")["bytes_by_rounds"]["1000000"]
    assert f"1,000,000 rounds | {size / 1000:.0f} kB |" in PAGE
    look = re.search(r"open page \| ([\d.]+ to [\d.]+ ms) of", PAGE)
    assert look and look[1] in (RESULTS / "page" / "README.md").read_text()
