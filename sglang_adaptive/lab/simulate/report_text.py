"""The report as plain, aligned text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sglang_adaptive.lab.simulate.results import SuiteResult
from sglang_adaptive.lab.simulate.targets import Outcome


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align *rows* under *head*: the first column to the left, the others to the right."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def text_report(results: Mapping[str, SuiteResult], judged: Sequence[Outcome]) -> str:
    """Return every table: shares (mean, worst), behaviour, targets."""
    parts = [
        "Share of the oracle's throughput, mean over the traces\n" + _shares(results, SuiteResult.mean_share),
        "Share of the oracle's throughput, worst trace\n" + _shares(results, SuiteResult.worst_share),
        "Switches in 200 settled rounds / worst 500 rounds against zero steps\n" + _behaviour(results),
        *own_depth_notes(results),
    ]
    if judged:
        met = sum(outcome.met for outcome in judged)
        parts.append(f"Targets of the throughput policy: {met} of {len(judged)} met\n" + targets_table(judged))
    return "\n\n".join(parts)


def policies(results: Mapping[str, SuiteResult]) -> list[str]:
    """Return the contenders of the run, in order."""
    return list(next(iter(results.values())).scores)


def _shares(results: Mapping[str, SuiteResult], figure: Callable[[SuiteResult, str], float]) -> str:
    names = policies(results)
    rows = [[suite, *(f"{figure(result, name):.3f}" for name in names)] for suite, result in results.items()]
    return table(["suite", *names], rows)


def _behaviour(results: Mapping[str, SuiteResult]) -> str:
    names = [name for name in policies(results) if not name.startswith("static-") or name == "static-0"]
    rows = []
    for suite, result in results.items():
        cells = []
        for name in names:
            switches = float(np.mean([score.switches for score in result.scores[name]]))
            window = min(score.zero_window for score in result.scores[name])
            cells.append(f"{switches:.1f} / {window:.3f}")
        rows.append([suite, *cells])
    return table(["suite", *names], rows)


def own_depth_notes(results: Mapping[str, SuiteResult]) -> list[str]:
    """Return a sentence on the per-request oracle for each suite whose requests differ."""
    return [
        f"{result.suite.title.capitalize()}: an oracle that gives each request its own depth would reach "
        f"{np.mean(result.own_depth_gain):.3f} times the oracle that gives the batch one depth. Round times "
        "of such batches are modelled; the model repeats the profile's cells within "
        f"{100 * (result.own_depth_fit_error or 0):.1f}%"
        for result in results.values()
        if result.own_depth_gain
    ]


def targets_table(judged: Sequence[Outcome]) -> str:
    """Return target, measured figure and verdict, one a line."""
    rows = []
    for outcome in judged:
        bound = ("<= " if outcome.ceiling else ">= ") + f"{outcome.target.bound:g}"
        suite = "every suite" if outcome.target.suite == "*" else outcome.target.suite
        rows.append([suite, outcome.title, bound, figure(outcome.measured), "met" if outcome.met else "MISSED"])
    return table(["suite", "figure", "target", "measured", ""], rows)


def figure(value: float) -> str:
    """Return a share with four digits, a count of rounds or switches with at most two."""
    return f"{value:.4f}" if value < 2 else f"{value:.2f}".rstrip("0").rstrip(".")
