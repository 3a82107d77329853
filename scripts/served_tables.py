"""The tables of docs/performance.md from real text on live servers (benchmarks/served)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # benchmarks is no part of the package

from benchmarks.served import table  # noqa: E402
from benchmarks.served.report import read  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "served"
TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], Iterator[str]]]] = {
    "served-greedy": ("greedy", table.race),
    "served-greedy-rates": ("greedy", table.rates),
    "served-sampled": ("sampled", table.race),
    "served-poisson": ("poisson", table.poisson),
    "served-equal": ("equal", table.equality),
    "served-host": ("host-time", table.host_time),
    "served-replay": ("replay", table.race),
    "served-replay-rates": ("replay", table.rates),
    "served-long": ("replay-16000", table.race),
}
"""By the name of the place in the page, the phase's file and what makes its table."""


def tables() -> dict[str, Iterator[str]]:
    """Return every table; one whose file is absent says so."""
    return {name: _table(file, make) for name, (file, make) in TABLES.items()}


def _table(file: str, make: Callable[[dict[str, Any]], Iterator[str]]) -> Iterator[str]:
    content = read(RESULTS / f"{file}.json")
    if content is None:
        yield "Not measured yet."
    else:
        yield from make(content)
