"""One picture a workload: tokens/s of every contender over the case's best static depth, or the ratio it is about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.server.compare import Case, Rates, _reference, _words, case_of, is_static, rates
from benchmarks.server.results import rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS = ("throughput", "throughput-saved", "ema")
RATIOS = {
    "first use": ("first_over_second", "tokens/s of the first use over the second"),
    "steady": ("itl_p95_against_static", "ITL p95 over that of the commonest depth held"),
}
"""Workloads that measure a ratio of their own: the row's key, and what it is."""

NARROW = 0.9
"""Where everything is above it the axis begins there, for differences of a percent."""


def plot(documents: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Draw every workload of *documents* into *folder*, which is made; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    present = dict.fromkeys(row["workload"] for document in documents for row in document["rows"])
    simulated = any(document["acceptance"].startswith("simulated") for document in documents)
    return [_draw(workload, documents, simulated, folder) for workload in present]


def _draw(workload: str, documents: Sequence[dict[str, Any]], simulated: bool, folder: Path) -> Path:
    from matplotlib.figure import Figure

    shown, what = _shown(workload, rows_of(documents, workload))
    every = dict.fromkeys(case for one in shown.values() for case in one)
    cases = sorted(every, key=lambda case: dict(case).get("batch_size", 0))
    figure = Figure(figsize=(max(7.0, 1.5 + 0.45 * len(cases)), 4.6), layout="constrained")
    axes = figure.subplots()
    for name, one in shown.items():
        _series(axes, name, [one.get(case) for case in cases])
    axes.axhline(1.0, color="0.6", linewidth=0.8)
    axes.set_xticks(range(len(cases)), [_words(case) for case in cases], rotation=60, ha="right", fontsize=7)
    axes.set_ylabel(what, fontsize=8)
    ratios = [ratio for one in shown.values() for ratio in one.values()]
    bottom = NARROW if min(ratios) > NARROW else 0.0
    axes.set_ylim(bottom, max(1.0, *ratios) + 0.05 * (1.0 - bottom))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, ncols=2, frameon=False)
    axes.set_title(workload + (" (simulated acceptance)" if simulated else ""), fontsize=10)
    path = folder / f"{workload.replace(' ', '-')}.png"
    figure.savefig(path, dpi=140)
    return path


def _shown(workload: str, rows: Sequence[dict[str, Any]]) -> tuple[Rates, str]:
    """Return what is drawn, by contender and case, and what it is."""
    if workload == "open loop":
        return _latencies(rows), "median latency over the best static depth's"
    key, what = RATIOS.get(workload, (None, ""))
    measured = [row for row in rows if key in row]
    if measured:
        by_name: Rates = {row["contender"]: {} for row in measured}
        for row in measured:
            by_name[row["contender"]][case_of(row)] = row[key]
        return by_name, what
    found = rates((row["contender"], row) for row in rows)
    reference, what = _reference(found)
    over = {
        name: {case: rate / reference[case] for case, rate in one.items() if case in reference}
        for name, one in found.items()
    }
    return {name: one for name, one in over.items() if one}, f"tokens/s over {what}"


def _latencies(rows: Sequence[dict[str, Any]]) -> Rates:
    """Return median latencies over those of the best static depth: tokens/s say how much arrives, not how it is served.

    Each pass has arrivals of its own, so those are compared that every contender of a case has; a run that was cut off
    has not all of them.
    """
    passes: dict[str, dict[Case, list[float]]] = {}
    for row in rows:
        told = [one["latency"]["p50_ms"] for one in row["passes"]]
        passes.setdefault(row["contender"], {})[case_of(row)] = told
    shared = [case for case in next(iter(passes.values())) if all(case in cases for cases in passes.values())]
    complete = {case: min(len(cases[case]) for cases in passes.values()) for case in shared}
    found = {name: {case: fmean(cases[case][: complete[case]]) for case in shared} for name, cases in passes.items()}
    static = [cases for name, cases in found.items() if is_static(name)] or list(found.values())
    best = {case: min(cases[case] for cases in static) for case in shared}
    return {name: {case: cases[case] / best[case] for case in shared} for name, cases in found.items()}


def _series(axes: Axes, name: str, values: Sequence[float | None]) -> None:
    ours = name in OURS
    shown = [float("nan") if value is None else value for value in values]
    axes.plot(
        range(len(shown)), shown, marker="o", markersize=4 if ours else 2.5, linewidth=1.6 if ours else 0.7,
        alpha=1.0 if ours else 0.7, label=name, zorder=3 if ours else 2, **({"color": "black"} if ours else {}),
    )  # fmt: skip
