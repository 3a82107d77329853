"""Writes the tables of docs/attention-dp.md from benchmarks/results/attention_dp*/; ``--check`` only compares."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from generated import DOCS, update

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "attention_dp"
PROBES = RESULTS.with_name("attention_dp_probes")
SERVED = RESULTS.with_name("attention_dp_served")
STARTS = {"true": "the true one", "wrong": "each time off by 15%", "none": "none"}


def scenes() -> Iterator[str]:
    """Yield by scene the mean and the worst rate of each way to agree."""
    yield from _table("scene", lambda cell: cell["scene"])


def sizes() -> Iterator[str]:
    """Yield the same by profile and number of ranks."""
    yield from _table("round times, ranks", lambda cell: f"{cell['profile']}, {cell['ranks']}")


def switches() -> Iterator[str]:
    """Yield the mean switches in 1,000 rounds of each way."""
    cells = _cells()
    names = list(cells[0]["ways"])
    means = [fmean(cell["ways"][name]["switches_per_1000_rounds"] for cell in cells) for name in names]
    yield from _head("", names)
    yield f"| switches in 1,000 rounds | {' | '.join(f'{mean:.0f}' for mean in means)} |"


def probes() -> Iterator[str]:
    """Yield by the profile at the start what the vote comes to without probes and with them."""
    ways = ("vote", "vote with probes")
    yield from _head("profile at the start", ["without probes", "with probes", "runs above, below", "switches"])
    for folder, words in STARTS.items():
        cells = _cells(PROBES / folder)
        gains = [cell["ways"][ways[1]]["rate"] - cell["ways"][ways[0]]["rate"] for cell in cells]
        signs = f"{sum(gain > 0 for gain in gains)}, {sum(gain < 0 for gain in gains)}"
        switches = [fmean(cell["ways"][way]["switches_per_1000_rounds"] for cell in cells) for way in ways]
        rates = " | ".join(_mean_and_worst(cells, way, 4) for way in ways)
        yield f"| {words} | {rates} | {signs} of {len(cells)} | {switches[0]:.0f}, {switches[1]:.0f} |"


def served() -> Iterator[str]:
    """Yield by load what two GPUs served: the policy's tokens a second, over the best held depth, and over none."""
    found = json.loads((SERVED / "rates.json").read_text(encoding="utf-8"))["ratios"]
    yield from _head("load, and requests of each rank", ["tokens/s", "over the best held depth", "over no speculation"])
    for scene, rates in found.items():
        steps = int(rates["best"].removeprefix("static-"))
        best = f"{rates['policy_over_best']:.3f} ({steps} step{'s' * (steps != 1)})"
        tokens = rates["tokens_per_second"]["policy"]
        yield f"| {scene} | {tokens:.0f} | {best} | {rates['policy_over_none']:.2f} |"


def _table(title: str, key: Callable[[dict[str, Any]], str]) -> Iterator[str]:
    cells = _cells()
    names = list(cells[0]["ways"])
    yield from _head(title, names)
    for group in dict.fromkeys(map(key, cells)):
        own = [cell for cell in cells if key(cell) == group]
        yield f"| {group} | {' | '.join(_mean_and_worst(own, name) for name in names)} |"
    yield f"| all | {' | '.join(_mean_and_worst(cells, name) for name in names)} |"


def _mean_and_worst(cells: list[dict[str, Any]], name: str, digits: int = 3) -> str:
    rates = [cell["ways"][name]["rate"] for cell in cells]
    return f"{fmean(rates):.{digits}f} ({min(rates):.{digits}f})"


def _head(title: str, names: list[str]) -> Iterator[str]:
    yield f"| {title} | {' | '.join(names)} |"
    yield "|---" * (len(names) + 1) + "|"


def _cells(folder: Path = RESULTS) -> list[dict[str, Any]]:
    reports = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    cells = [{**cell, "profile": report["profile"]} for report in reports for cell in report["cells"]]
    return sorted(cells, key=lambda cell: (cell["profile"], cell["ranks"]))


if __name__ == "__main__":
    tables = {"scenes": scenes(), "sizes": sizes(), "switches": switches(), "probes": probes(), "served": served()}
    sys.exit(update(DOCS / "attention-dp.md", {f"attention-dp-{name}": lines for name, lines in tables.items()}))
