"""Writes the simulator's results into docs/performance.md from their file; ``--check`` only compares."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from generated import DOCS, update

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "simulation" / "simulate.json"
SHOWN = ("throughput", "ema", "ema-all", "static-3", "static-0")


def _table() -> Iterator[str]:
    yield f"| Suite | {' | '.join(SHOWN)} |\n|---|{'---|' * len(SHOWN)}"
    for name, suite in json.loads(RESULTS.read_text())["suites"].items():
        scores = [suite["policies"][policy] for policy in SHOWN]
        cells = [f"{score['mean']:.3f}, {score['worst']:.3f}" for score in scores]
        yield f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(update(DOCS / "performance.md", {"simulation": "\n".join(_table()) + "\n"}))
