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
