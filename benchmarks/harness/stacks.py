"""Where a scheduler's thread spends a round: its Python stack at even intervals, while a file exists.

A timer's signal reads the stack, so nothing waits for the interpreter's lock: a sampling thread would see the
places where the lock is free, which are calls of torch. The signal is handled when running C code returns, so a sample
weighs as much as the time since the previous one, and C code counts for the function that called it. A sample takes a
few microseconds, 1% of a round at the interval here.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

FILE = "BENCHMARK_STACKS"
"""Environment variable: path of a scheduler's stacks. It samples while the same path plus ``.on`` exists."""

SECONDS, LOOKS = 0.001, 0.02
"""Seconds between samples, and between checks for the file."""

PACKAGES = ("sglang_adaptive", "sglang", "torch", "triton")
"""Where a file's name in a stack begins; for other files only the name is kept."""

SHOWN = 25
PATIENCE = 10.0


class Sampler:
    """Sums the seconds of each stack of this process's main thread while the file exists."""

    def __init__(self, path: Path) -> None:
        self._path, self._counting = path, False
        self._seconds: dict[tuple[Any, ...], float] = {}
        self._last = 0.0

    def install(self) -> None:
        """Start to check for the file; call it on the main thread."""
        signal.signal(signal.SIGALRM, self._sample)
        # The process that started the server may have blocked the signal.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        wanted = self._path.with_suffix(".on")
        while True:
            time.sleep(LOOKS)
            if wanted.exists():
                self._last = time.perf_counter()
                signal.setitimer(signal.ITIMER_REAL, SECONDS, SECONDS)
                while wanted.exists():
                    time.sleep(LOOKS)
                    if not self._seconds:  # a host that delivers no timer signal to the thread
                        self._sample_from_here(wanted)
                signal.setitimer(signal.ITIMER_REAL, 0.0)
                self._write()

    def _sample_from_here(self, wanted: Path) -> None:
        """Sample from this thread, which sees more of the places where the interpreter's lock is free."""
        main, before = threading.main_thread().ident, sys.getswitchinterval()
        sys.setswitchinterval(SECONDS / 10)
        while wanted.exists():
            for _ in range(round(LOOKS / SECONDS)):
                time.sleep(SECONDS)
                self._sample(0, sys._current_frames()[main or 0])
        sys.setswitchinterval(before)

    def _write(self) -> None:
        seconds, self._seconds = self._seconds, {}
        stacks = {";".join(map(_named, reversed(stack))): spent for stack, spent in seconds.items()}
        partial = self._path.with_suffix(".part")
        partial.write_text(json.dumps(stacks))
        partial.replace(self._path)

    def _sample(self, number: int, frame: FrameType | None) -> None:
        if self._counting:  # the signal arrived again meanwhile
            return
        self._counting = True
        stack = []
        while frame is not None:
            stack.append(frame.f_code)
            frame = frame.f_back
        now = time.perf_counter()
        key = tuple(stack)
        self._seconds[key] = self._seconds.get(key, 0.0) + now - self._last
        self._last, self._counting = now, False


def _named(code: Any) -> str:
    parts = Path(code.co_filename).parts
    begins = [at for at, part in enumerate(parts) if part in PACKAGES]
    return f"{'/'.join(parts[begins[0] :]) if begins else parts[-1]}:{code.co_qualname}"


def install(path: str) -> None:
    """In a scheduler: prepare to sample stacks into *path*."""
    Sampler(Path(path)).install()


@contextmanager
def sampled(path: Path) -> Iterator[dict[str, float]]:
    """Sample the stacks of the scheduler that writes to *path*; the mapping is filled at the end.

    Raises TimeoutError if it does not answer.
    """
    found: dict[str, float] = {}
    path.unlink(missing_ok=True)
    path.with_suffix(".on").touch()
    try:
        yield found
    finally:
        path.with_suffix(".on").unlink()
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.name}: the scheduler wrote no stacks")
        time.sleep(0.01)
    found.update(json.loads(path.read_text()))


def tally(stacks: Mapping[str, float], round_ms: float) -> dict[str, Any]:
    """Return milliseconds per round of the most expensive functions, with what they call and by themselves.

    *round_ms* is the measured time of a round without sampling. Idle time counts as well, so sample only while the
    scheduler has requests.
    """
    with_calls, alone = Counter[str](), Counter[str]()
    for stack, seconds in stacks.items():
        functions = stack.split(";")
        with_calls.update(dict.fromkeys(set(functions), seconds))
        alone[functions[-1]] += seconds
    total = sum(stacks.values())
    scale = round_ms / total if total else 0.0
    return {
        "seconds": total,
        "ms_a_round_with_calls": {name: spent * scale for name, spent in with_calls.most_common(2 * SHOWN)},
        "ms_a_round_alone": {name: spent * scale for name, spent in alone.most_common(SHOWN)},
    }
