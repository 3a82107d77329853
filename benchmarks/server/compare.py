"""Every policy as a share of each cell's best static depth: ``python -m benchmarks.server.compare CELLS.json ...``

The static depths are taken from all files together; -1 in ``steps`` is the policy of that file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import geometric_mean
from typing import Any

Cell = tuple[int, float]
"""Batch size and p."""


def main(paths: list[str]) -> int:
    """Print one line a contender; returns 2 without files."""
    if not paths:
        print("usage: python -m benchmarks.server.compare CELLS.json [OTHER.json ...]", file=sys.stderr)
        return 2
    rates = _rates([json.loads(Path(path).read_text()) for path in paths])
    best = _best_static(rates)
    print(f"{'':<22}{'cells':>7}{'geometric mean':>16}{'worst':>8}   of the cell's best static depth")
    for name, cells in rates.items():
        shares = [cells[cell] / best[cell] for cell in cells if cell in best]
        print(f"{name:<22}{len(shares):>7}{geometric_mean(shares):>16.3f}{min(shares):>8.3f}")
    return 0


def _rates(results: list[dict[str, Any]]) -> dict[str, dict[Cell, float]]:
    """Return tokens/s by contender and cell."""
    found: dict[str, dict[Cell, float]] = {}
    for result in results:
        for cell in result["cells"]:
            name = f"static {cell['steps']}" if cell["steps"] >= 0 else result["label"]
            found.setdefault(name, {})[cell["batch_size"], cell["p"]] = cell["tokens_per_second"]
    return found


def _best_static(rates: dict[str, dict[Cell, float]]) -> dict[Cell, float]:
    best: dict[Cell, float] = {}
    for name, cells in rates.items():
        if name.startswith("static"):
            for cell, rate in cells.items():
                best[cell] = max(rate, best.get(cell, 0.0))
    return best


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
