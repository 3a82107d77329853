"""Tokens a round at each depth, by replay: `python -m benchmarks.traces.replay TRACE.npz ...` prints Markdown."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.traces.files import requests, select
from sglang_adaptive.lab.traces import Trace, TraceError, read

DEPTHS = (1, 2, 3, 5, 7, 15)
"""Those that a trace's longest chain reaches are shown."""


def rounds(accepted: npt.NDArray[np.uint8], steps: int) -> list[int]:
    """Return the tokens of each round of a request at depth *steps*: accepted drafts plus one."""
    at, found = 0, []
    while at < len(accepted):
        found.append(min(int(accepted[at]), steps) + 1)
        at += found[-1]
    return found


def tokens_a_round(trace: Trace, steps: int) -> float:
    """Return the mean over all rounds of all requests."""
    return float(np.mean([tokens for _, accepted, _ in requests(trace) for tokens in rounds(accepted, steps)]))


def by_category(trace: Trace) -> Iterator[tuple[str, Trace, Trace]]:
    """Yield each category and "all", with its part of *trace* as recorded, and with loops cut."""
    for category in (*dict.fromkeys(trace.category), "all"):
        part = select(trace, [category in (name, "all") for name in trace.category])
        yield category, part, part.without_repetitions()


def table(trace: Trace) -> list[str]:
    """Return the lines of a table: one row per category and one for all; each mean as recorded, and with loops cut."""
    depths = [depth for depth in DEPTHS if depth <= trace.accepted.max(initial=0)]
    lines = ["| category | requests | positions | in loops | " + " | ".join(map(str, depths)) + " |"]
    lines.append("|---" * (len(depths) + 4) + "|")
    for category, part, cut in by_category(trace):
        means = [f"{tokens_a_round(part, steps):.2f} / {tokens_a_round(cut, steps):.2f}" for steps in depths]
        loops = 1 - len(cut.accepted) / len(part.accepted)
        counts = [f"{len(part.category)}", f"{len(part.accepted):,}", f"{loops:.0%}"]
        lines.append("| " + " | ".join([category, *counts, *means]) + " |")
    return lines


def main(paths: Sequence[str]) -> int:
    for path in paths:
        try:
            trace = read(path)
        except TraceError as error:
            print(error, file=sys.stderr)
            return 2
        print("\n".join([f"{Path(path).name}:", "", *table(trace), ""]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
