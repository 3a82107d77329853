"""Writes the tables of docs/performance.md, docs/simulator.md and the README from benchmarks/results.

``--check`` only compares.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h200_tables
import real_text_tables
from generated import DOCS, update

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
SHOWN = ("throughput", "ema", "ema-all", "static-3", "static-0")


def _policies() -> Iterator[str]:
    """Yield a table of the policies' mean and worst share of the oracle."""
    yield f"| Suite | {' | '.join(SHOWN)} |\n|---|{'---|' * len(SHOWN)}"
    for name, suite in _suites("simulate.json"):
        scores = [suite["policies"][policy] for policy in SHOWN]
        cells = [f"{score['mean']:.3f}, {score['worst']:.3f}" for score in scores]
        yield f"| {name} | {' | '.join(cells)} |"


def _ablations() -> Iterator[str]:
    """Yield a table of the mean share of the oracle with each part left out."""
    suites = _suites("ablation.json")
    policies = list(suites[0][1]["policies"])
    yield f"| Suite | {' | '.join(policies)} |\n|---|{'---|' * len(policies)}"
    for name, suite in suites:
        cells = [f"{suite['policies'][policy]['mean']:.3f}" for policy in policies]
        yield f"| {name} | {' | '.join(cells)} |"


def _demo() -> Iterator[str]:
    """Yield a table of what each contender of a demo reached."""
    found = json.loads((RESULTS / "demo" / "demo.json").read_text())
    phases = [(phase["family"], phase["concurrency"], phase["policies"]) for phase in found["phases"]]
    heads = [f"{family}, {concurrency}" for family, concurrency, _ in phases]
    yield f"| | {' | '.join(heads)} | overall |\n|---|{'---|' * (len(heads) + 1)}"
    for name, policy in found["policies"].items():
        rates = [policies[name]["tokens_per_second"] for _, _, policies in phases]
        cells = [f"{rate:.0f}" for rate in (*rates, policy["tokens_per_second"])]
        yield f"| {policy['title']} | {' | '.join(cells)} |"


def _suites(file: str) -> list[tuple[str, Any]]:
    return list(json.loads((RESULTS / "simulation" / file).read_text())["suites"].items())


if __name__ == "__main__":
    h200 = {
        "h200": h200_tables.reached(),
        "h200-cells": h200_tables.cells(),
        "switching": h200_tables.switching(),
        "open-loop": h200_tables.open_loop(),
    }
    ours = {"simulation": _policies(), "demo": _demo()}
    stale = [
        update(DOCS / "performance.md", {"real-gates": real_text_tables.gates(), **h200, **ours}),
        update(DOCS / "simulator.md", {"ablation": _ablations()}),
        update(DOCS.parent / "README.md", {"real": real_text_tables.first_figure()}),
    ]
    sys.exit(max(stale))
