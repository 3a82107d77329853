"""Reads how long a server's CUDA graph replays took on the device, and says whether some stretches ran faster.

    BENCHMARK_GRAPH_TIMES=FOLDER python -m benchmarks.server start ...     # a server writes FOLDER/PID.csv
    python -m benchmarks.server.graph_times FOLDER/PID.csv

A row is a replay: seconds since the epoch on the host, the graph by its first use, milliseconds that the device was at
other work or idle before it, and milliseconds that the graph took. Rounds of one graph that stand at the same place
after a pause have contexts of the same length in the benchmark's cells, so a stretch of them counts as faster where it
is below their median by more than FASTER_MS.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean, median

from benchmarks.server.graph_recorder import COLUMNS
from benchmarks.server.results import BadResult

PAUSE_MS = 20.0
"""A longer gap is taken for one between passes, after which the contexts are short again."""

FASTER_MS = 0.045
"""Three in four rounds are within 0.012 ms of the median at their place; the two ways of plain decoding on an H200 are
0.06 ms apart and more."""

FEWEST_PASSES = 3
"""Passes that a median needs."""

LISTED = 8
"""Stretches of a graph whose lengths are printed, the longest first."""


@dataclass(frozen=True)
class Replay:
    """One row of a file."""

    seconds: float
    graph: int
    gap_ms: float
    graph_ms: float
    place: int
    """Replays of this graph since the last pause before any."""


def read(path: Path) -> list[Replay]:
    """Return a file's replays in order; a name in .gz is unpacked. Raises BadResult, naming file and line."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            return _placed(csv.DictReader(file))
    except OSError as error:
        raise BadResult(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as problem:
        raise BadResult(f"{path}: {problem}") from None


def _placed(rows: csv.DictReader[str]) -> list[Replay]:
    if rows.fieldnames != COLUMNS:
        raise ValueError(f"first line: expected {','.join(COLUMNS)}")
    replays, places = [], Counter[int]()
    for row in rows:
        try:
            graph = int(row["graph"])
            seconds, gap_ms, graph_ms = (float(row[name]) for name in ("seconds", "gap_ms", "graph_ms"))
        except (TypeError, ValueError):  # a line that was cut off lacks columns
            raise ValueError(f"line {rows.line_num}: expected a number for each of {','.join(COLUMNS)}") from None
        if gap_ms > PAUSE_MS:
            places.clear()
        replays.append(Replay(seconds, graph, gap_ms, graph_ms, places[graph]))
        places[graph] += 1
    return replays


@dataclass(frozen=True)
class Stretch:
    """Replays of one graph in a row that were faster than others at their places."""

    seconds: float
    rounds: int
    faster_ms: float


def faster(replays: Sequence[Replay]) -> list[Stretch]:
    """Return the faster stretches of one graph's *replays*."""
    at_place: defaultdict[int, list[float]] = defaultdict(list)
    for one in replays:
        at_place[one.place].append(one.graph_ms)
    usual = {place: median(times) for place, times in at_place.items() if len(times) >= FEWEST_PASSES}
    below = [(one, usual[one.place] - one.graph_ms) for one in replays if one.place in usual]
    runs = (list(run) for is_faster, run in groupby(below, lambda pair: pair[1] > FASTER_MS) if is_faster)
    return [Stretch(run[0][0].seconds, len(run), fmean(by for _, by in run)) for run in runs]


def total(stretches: Sequence[Stretch]) -> tuple[int, float]:
    """Return their rounds, and the milliseconds that these saved together."""
    return sum(one.rounds for one in stretches), sum(one.rounds * one.faster_ms for one in stretches)


def table(replays: Sequence[Replay], fewest: int) -> Iterable[str]:
    """Yield a line for each graph that was replayed at least *fewest* times."""
    yield f"{'graph':>5} {'replays':>8} {'gap ms':>8} {'graph ms':>9} {'faster':>7} {'by ms':>6}  stretches: rounds"
    for graph, times in Counter(one.graph for one in replays).most_common():
        if times < fewest:
            break
        of_graph = [one for one in replays if one.graph == graph]
        found = faster(of_graph)
        rounds, saved = total(found)
        by = saved / rounds if rounds else 0.0
        gap, took = median(one.gap_ms for one in of_graph), median(one.graph_ms for one in of_graph)
        longest = ", ".join(map(str, sorted((one.rounds for one in found), reverse=True)[:LISTED]))
        share = f"{rounds / times:>7.1%}"
        yield f"{graph:>5} {times:>8} {gap:>8.3f} {took:>9.3f} {share} {by:>6.3f}  {len(found)}: {longest}"


def main() -> int:
    """Print the table of each file; returns 2 when one cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="CSV")
    parser.add_argument("--fewest", type=int, default=1000, help="replays of a graph that is shown")
    options = parser.parse_args()
    try:
        for path in options.files:
            print("\n".join([path.name, *table(read(path), options.fewest)]))
    except BadResult as problem:
        print(problem, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
