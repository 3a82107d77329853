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
    "served-stock-greedy": ("stock-greedy", table.stock),
    "served-stock-sampled": ("stock-sampled", table.stock),
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
    """Return the table of every file that is there; its place has to be in the page."""
    found = {name: (read(RESULTS / f"{file}.json"), make) for name, (file, make) in TABLES.items()}
    return {name: make(content) for name, (content, make) in found.items() if content is not None}
