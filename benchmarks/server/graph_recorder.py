"""In a server: how long each replay of a CUDA graph takes on the device, without a profiler.

Each replay stands between two events, which cost the host some microseconds. What a row holds: `graph_times.py`, which
reads them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import time
from typing import Any, TextIO

FOLDER = "BENCHMARK_GRAPH_TIMES"
"""Environment variable: where servers write; nothing is timed without it."""

AHEAD = 300
"""Replays whose events are left alone, the device being behind the host; as many are read and written at once."""

COLUMNS = ["seconds", "graph", "gap_ms", "graph_ms"]
"""Of a row: when, since the epoch and on the host's clock; which graph; the device's time before it and in it."""


class Recorder:
    """Stands around ``torch.cuda.CUDAGraph.replay``; writes what the replays before the last AHEAD took."""

    def __init__(self, folder: Path, event: Callable[[], Any]) -> None:
        """Write into *folder*, which exists; *event* makes an event that tells the device's time."""
        self._folder, self._event = folder, event
        self._replays: deque[tuple[float, int, Any, Any, Any]] = deque()
        """Not yet written: seconds, the graph's number, the event that ended the one before, the two around it."""
        self._graphs: dict[int, int] = {}
        """Numbers in the order of first use, by the graph's id: a server keeps its graphs."""
        self._last: Any = None
        """What ended the latest replay; None before the first."""
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
