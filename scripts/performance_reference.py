"""Writes the simulator's results into docs/performance.md and docs/simulator.md; ``--check`` only compares."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generated import DOCS, update

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "simulation"
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


def _suites(file: str) -> list[tuple[str, Any]]:
    return list(json.loads((RESULTS / file).read_text())["suites"].items())


if __name__ == "__main__":
    stale = update(DOCS / "performance.md", {"simulation": "\n".join(_policies()) + "\n"})
    sys.exit(update(DOCS / "simulator.md", {"ablation": "\n".join(_ablations()) + "\n"}) or stale)
