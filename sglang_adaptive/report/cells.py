"""The sections of server benchmarks: each contender as a share of every cell's best static depth.

A cell is a batch size at one acceptance p. Files measured on the same hardware with the same kind of acceptance are
compared with each other, so static depths may come from another file than the policy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import geometric_mean, mean
from typing import Any

from sglang_adaptive.report.blocks import Block, Facts, Picture, Section, Table, Text
from sglang_adaptive.report.colours import colour
from sglang_adaptive.report.results import Result, source
from sglang_adaptive.simulate.svg import Chart

Place = tuple[int, float | None]
"""Batch size, and p where acceptance is simulated."""

Rates = dict[str, dict[Place, float]]
"""Tokens/s by contender and place; the mean where a place was measured more than once."""

ROW = 24.0


def sections(results: Sequence[Result]) -> Iterator[Section]:
    """Yield a section for each group of results that may be compared."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        groups.setdefault((result.data.get("hardware"), result.data.get("acceptance")), []).append(result)
    for group in groups.values():
        yield _section(group)


def _section(results: list[Result]) -> Section:
    hardware = results[0].data.get("hardware") or "hardware not recorded"
    acceptance = results[0].data.get("acceptance")
    blocks: list[Block] = [Text(f"Acceptance: {acceptance}.")] if acceptance else []
    rates = _rates(results, "cells")
    if rates:
        blocks += _compared(rates)
    switching = _rates(results, "switching")
    if switching:
        text = "Acceptance that changes while a batch decodes, tokens per second:"
        blocks += [Text(text), _table(switching, _best_static(switching))]
    for result in results:
        blocks.append(Facts({"file": result.name, **source(result.data)}))
    return Section(f"Server benchmark on {hardware}", blocks)


def _rates(results: Sequence[Result], key: str) -> Rates:
    measured: dict[str, dict[Place, list[float]]] = {}
    for result in results:
        for cell in result.data.get(key) or ():
            name = f"static {cell['steps']}" if cell["steps"] >= 0 else result.data["label"] or "policy"
            place = cell["batch_size"], cell.get("p")
            measured.setdefault(name, {}).setdefault(place, []).append(cell["tokens_per_second"])
    return {name: {place: mean(rates) for place, rates in cells.items()} for name, cells in measured.items()}


def _best_static(rates: Rates) -> dict[Place, float]:
    best: dict[Place, float] = {}
    for name, cells in rates.items():
        if name.startswith("static "):
            for place, rate in cells.items():
                best[place] = max(rate, best.get(place, 0.0))
    return best


def _compared(rates: Rates) -> Iterator[Block]:
    best = _best_static(rates)
    shares = {name: [rate / best[at] for at, rate in cells.items() if at in best] for name, cells in rates.items()}
    shares = {name: found for name, found in shares.items() if found}
    if shares:
        ranked = sorted(shares, key=lambda name: -geometric_mean(shares[name]))
        yield Picture(_chart({name: shares[name] for name in ranked}),
                      "Share of each cell's best static depth: dot at the geometric mean, line down to the worst cell.")
        rows = [
            [name, str(len(shares[name])), f"{geometric_mean(shares[name]):.3f}", f"{min(shares[name]):.3f}"]
            for name in ranked
        ]
        head = ["as a share of each cell's best static depth", "cells", "geometric mean", "worst cell"]
        yield Table(head, rows, frozenset(i for i, name in enumerate(ranked) if not name.startswith("static ")))
    yield Text("Tokens per second; in brackets the share of the cell's best static depth." if best else
               "Tokens per second. No file has static depths to compare with.")  # fmt: skip
    yield _table(rates, best)


def _table(rates: Rates, best: dict[Place, float]) -> Table:
    places = sorted({at for cells in rates.values() for at in cells}, key=lambda at: (at[0], at[1] or 0.0))
    rows = []
    for place in places:
        cells = []
        for name, found in rates.items():
            rate = found.get(place)
            share = f" ({rate / best[place]:.2f})" if rate and place in best and not name.startswith("static ") else ""
            cells.append("-" if rate is None else f"{rate:.0f}{share}")
        rows.append([f"batch {place[0]}" + (f", p {place[1]:g}" if place[1] is not None else ""), *cells])
    return Table(["", *rates], rows)


def _chart(shares: dict[str, list[float]]) -> str:
    low = math.floor(10 * min(min(found) for found in shares.values())) / 10
    high = max(1.0, max(geometric_mean(found) for found in shares.values()))
    chart = Chart(len(shares) * ROW + 34, (low, high), (0, 1), left=110, label="share of each cell's best static depth")
    chart.x_ticks([(low + i / 10, f"{low + i / 10:.1f}") for i in range(round(10 * (1 - low)) + 1)], grid=True)
    for index, (name, found) in enumerate(shares.items()):
        at = chart.top + index * ROW + ROW / 2
        average = geometric_mean(found)
        chart.text(chart.left - 8, at + 3, name, "end", "label")
        title = f"{name}: geometric mean {average:.3f}, worst cell {min(found):.3f}"
        chart.range_dot(min(found), average, at, colour(name), title)
    return chart.render()
