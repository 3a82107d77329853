"""What docs/performance.md says of the first run on an H200, and of costs, is what its raw data says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import geometric_mean
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = " ".join((ROOT / "docs" / "performance.md").read_text().split())
POLICY = -1
"""How the raw files of that day call the rows in which no depth was held."""


def results(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def rates(rows: list[dict[str, Any]]) -> dict[tuple[int, float], dict[int, float]]:
    """Return tokens/s by (batch size, p), and there by depth."""
    found: dict[tuple[int, float], dict[int, float]] = {}
    for row in rows:
        found.setdefault((row["batch_size"], row.get("p", 0.0)), {})[row["steps"]] = row["tokens_per_second"]
    return found


def best(by: dict[int, float]) -> float:
    """Return the rate of the best depth that was held."""
    return max(rate for depth, rate in by.items() if depth != POLICY)


def against_the_best(cells: dict[tuple[int, float], dict[int, float]], steps: int) -> list[float]:
    return [by[steps] / best(by) for by in cells.values()]


def told(shares: list[float]) -> tuple[str, str]:
    return f"{geometric_mean(shares):.3f}", f"{min(shares):.3f}"


def test_cells() -> None:
    cells = rates(results("h200/cells-throughput-and-static.json")["cells"])
    assert len(cells) == 16
    mean, worst = told(against_the_best(cells, POLICY))
    assert f"each cell's best static depth | >= 0.98 | {mean} |" in PAGE
    assert f"| worst of the 16 cells | >= 0.95 | {worst} |" in PAGE
    singles = {steps: told(against_the_best(cells, steps)) for steps in (0, 1, 2, 3, 5, 7)}
    assert max(singles, key=lambda steps: singles[steps]) == 3
    (mean, worst), (none, worst_of_none) = singles[3], singles[0]
    assert f"3 steps, the best single depth, has {mean} over the 16 cells (worst {worst})" in PAGE
    assert f"and 0 steps {none} ({worst_of_none})" in PAGE
    slots = rates(results("h200/cells-ema-built-in.json")["cells"])
    shares = [by[POLICY] / best(cells[cell]) for cell, by in slots.items()]
    mean, worst = told(shares)
    assert f"policy {mean} over {len(shares)} of the cells ({worst})" in PAGE


def test_switching() -> None:
    cells = rates(results("h200/switching-throughput-and-static.json")["switching"])
    sizes = sorted(batch for batch, _ in cells)
    shares = [f"{share:.3f}" for share in against_the_best(dict(sorted(cells.items())), POLICY)]
    assert "batch " + ", ".join(f"{size}: {share}" for size, share in zip(sizes, shares, strict=True)) in PAGE
    for name, steps in (("throughput", POLICY), ("1 step", 1), ("3 steps", 3), ("5 steps", 5)):
        row = " | ".join(f"{by[steps]:.0f}" for _, by in sorted(cells.items()))
        assert f"| {name} | {row} |" in PAGE


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
