"""Writes the simulator's results into docs/performance.md from their file; ``--check`` only compares."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results" / "simulation" / "simulate.json"
BEGIN, END = "<!-- simulation: begin -->\n", "<!-- simulation: end -->\n"
SHOWN = ("throughput", "ema", "ema-all", "static-3", "static-0")


def current(page: str) -> str:
    """Return *page* with what is between its markers replaced."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n".join(_table()) + "\n" + END + rest.split(END)[1]


def _table() -> Iterator[str]:
    yield f"| Suite | {' | '.join(SHOWN)} |\n|---|{'---|' * len(SHOWN)}"
    for name, suite in json.loads(RESULTS.read_text())["suites"].items():
        scores = [suite["policies"][policy] for policy in SHOWN]
        cells = [f"{score['mean']:.3f}, {score['worst']:.3f}" for score in scores]
        yield f"| {name} | {' | '.join(cells)} |"


def main() -> int:
    page = PAGE.read_text()
    if "--check" in sys.argv[1:]:
        return int(current(page) != page)
    PAGE.write_text(current(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
