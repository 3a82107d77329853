"""How long each replay of a CUDA graph takes on the device, without a profiler, and whether some passes run faster.

    BENCHMARK_GRAPH_TIMES=FOLDER python -m benchmarks.server start ...     # a server writes FOLDER/PID.csv
    python -m benchmarks.server.graph_times FOLDER/PID.csv

A row is a replay: seconds since the epoch on the host, the graph by its first use, milliseconds that the device was at
other work or idle before it, and milliseconds that the graph took. Rounds of one graph that stand at the same place
after a pause have contexts of the same length in the benchmark's cells, so a stretch of them counts as faster where it
is below their median by more than FASTER_MS. Two events a replay cost the host some microseconds.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from time import time
from typing import Any, TextIO

FOLDER = "BENCHMARK_GRAPH_TIMES"
"""Environment variable: where servers write; nothing is timed without it."""

AHEAD = 300
"""Replays whose events are left alone, the device being behind the host; as many are read and written at once."""

PAUSE_MS = 20.0
FASTER_MS = 0.045
"""Three times what rounds at the same place differ by; the two ways of plain decoding are 0.06 ms apart and more."""

FEWEST_PASSES = 3
"""Passes that a median needs."""

LISTED = 8
COLUMNS = ["seconds", "graph", "gap_ms", "graph_ms"]


class Recorder:
    """Stands around ``torch.cuda.CUDAGraph.replay``; writes what the replays before the last AHEAD took."""

    def __init__(self, folder: Path, event: Callable[[], Any]) -> None:
        self._folder, self._event = folder, event
        self._replays: deque[tuple[float, int, Any, Any, Any]] = deque()
        self._graphs: dict[int, int] = {}
        self._last: Any = None
        self._file: TextIO | None = None

    def replay(self, plain: Callable[[Any], None], graph: Any) -> None:
        """Replay *graph* between two events."""
        before, after = self._event(), self._event()
        before.record()
        plain(graph)
        after.record()
        number = self._graphs.setdefault(id(graph), len(self._graphs))
        self._replays.append((time(), number, self._last, before, after))
        self._last = after
        if len(self._replays) >= 2 * AHEAD:
            self._write()

    def _write(self) -> None:
        if self._file is None:
            self._file = (self._folder / f"{os.getpid()}.csv").open("w")
            self._file.write(",".join(COLUMNS) + "\n")
        while len(self._replays) > AHEAD:
            seconds, number, last, before, after = self._replays.popleft()
            after.synchronize()  # no wait, unless the host is that far ahead
            gap = 0.0 if last is None else last.elapsed_time(before)
            self._file.write(f"{seconds:.4f},{number},{gap:.4f},{before.elapsed_time(after):.4f}\n")
        self._file.flush()


def record() -> None:
    """In a scheduler: time every replay from now on, into the folder that the environment names, if it names one."""
    if not os.environ.get(FOLDER):
        return
    import torch

    folder = Path(os.environ[FOLDER])
    folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(folder, lambda: torch.cuda.Event(enable_timing=True))
    plain = torch.cuda.CUDAGraph.replay

    def replay(graph: Any) -> None:
        if torch.cuda.is_current_stream_capturing():
            plain(graph)
        else:
            recorder.replay(plain, graph)

    torch.cuda.CUDAGraph.replay = replay


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
    """Return a file's replays in order, of a name in .gz unpacked. Raises OSError, or ValueError in one line."""
    replays, places = [], Counter[int]()
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        rows = csv.DictReader(file)
        if rows.fieldnames != COLUMNS:
            raise ValueError(f"{path}: first line: expected {','.join(COLUMNS)}")
        for row in rows:
            graph, gap = int(row["graph"]), float(row["gap_ms"])
            if gap > PAUSE_MS:
                places.clear()
            replays.append(Replay(float(row["seconds"]), graph, gap, float(row["graph_ms"]), places[graph]))
            places[graph] += 1
    return replays


@dataclass(frozen=True)
class Stretch:
    """Replays of one graph in a row that were faster than others at their places."""

    seconds: float
    rounds: int
    faster_ms: float


def faster(replays: Iterable[Replay]) -> list[Stretch]:
    """Return the faster stretches of one graph's *replays*."""
    of_graph = list(replays)
    at_place: defaultdict[int, list[float]] = defaultdict(list)
    for one in of_graph:
        at_place[one.place].append(one.graph_ms)
    usual = {place: median(times) for place, times in at_place.items() if len(times) >= FEWEST_PASSES}
    below = [(one, usual[one.place] - one.graph_ms) for one in of_graph if one.place in usual]
    runs = (list(run) for is_faster, run in groupby(below, lambda pair: pair[1] > FASTER_MS) if is_faster)
    return [Stretch(run[0][0].seconds, len(run), fmean(by for _, by in run)) for run in runs]


def table(replays: Sequence[Replay], fewest: int) -> Iterable[str]:
    """Yield a line for each graph that was replayed at least *fewest* times."""
    yield f"{'graph':>5} {'replays':>8} {'gap ms':>8} {'graph ms':>9} {'faster':>7} {'by ms':>6}  stretches: rounds"
    for graph, times in Counter(one.graph for one in replays).most_common():
        if times < fewest:
            break
        of_graph = [one for one in replays if one.graph == graph]
        found = faster(of_graph)
        rounds = sum(one.rounds for one in found)
        by = sum(one.faster_ms * one.rounds for one in found) / rounds if rounds else 0.0
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
    except OSError as error:
        print(f"{error.filename}: cannot be read: {error.strerror}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
