"""One picture a workload: tokens/s of every contender as a share of the case's best static depth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.server.compare import _reference, _words, rates
from benchmarks.server.results import rows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS = ("throughput", "throughput-saved", "ema")


def plot(documents: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Draw every workload of *documents* into *folder*, which is made; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    present = dict.fromkeys(row["workload"] for document in documents for row in document["rows"])
    simulated = any(document["acceptance"].startswith("simulated") for document in documents)
    return [_draw(workload, documents, simulated, folder) for workload in present]


def _draw(workload: str, documents: Sequence[dict[str, Any]], simulated: bool, folder: Path) -> Path:
    from matplotlib.figure import Figure

    rows = rows_of(documents, workload)
    found = rates((row["contender"], row) for row in rows)
    reference, what = _reference(found)
    cases = list(dict.fromkeys(case for one in found.values() for case in one if case in reference))
    figure = Figure(figsize=(max(7.0, 1.5 + 0.45 * len(cases)), 4.6), layout="constrained")
    axes = figure.subplots()
    for name, one in found.items():
        _series(axes, name, [one[case] / reference[case] if case in one else None for case in cases])
    axes.axhline(1.0, color="0.6", linewidth=0.8)
    axes.set_xticks(range(len(cases)), [_words(case) for case in cases], rotation=60, ha="right", fontsize=7)
    axes.set_ylabel(f"tokens/s over {what}", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, ncols=2, frameon=False)
    axes.set_title(workload + (" (simulated acceptance)" if simulated else ""), fontsize=10)
    path = folder / f"{workload.replace(' ', '-')}.png"
    figure.savefig(path, dpi=140)
    return path


def _series(axes: Axes, name: str, values: Sequence[float | None]) -> None:
    ours = name in OURS
    shown = [float("nan") if value is None else value for value in values]
    axes.plot(
        range(len(shown)), shown, marker="o", markersize=4 if ours else 2.5, linewidth=1.6 if ours else 0.7,
        alpha=1.0 if ours else 0.7, label=name, zorder=3 if ours else 2, **({"color": "black"} if ours else {}),
    )  # fmt: skip
