"""Prints the demo's progress: one changing line on a terminal, one line a stage elsewhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

from sglang_adaptive.lab.demo.drawing import is_terminal

_CLEAR = "\r\x1b[K"


class Progress:
    """Prints to `stream`; each line begins with the seconds since the start."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._begin = clock()
        self._live = is_terminal(stream)
        self._shown = ""

    @property
    def seconds(self) -> float:
        """Seconds since the demo began."""
        return self._clock() - self._begin

    def now(self, text: str) -> None:
        """Show *text* until the next call; only on a terminal."""
        if not self._live:
            return
        line = self._stamped(text)[: shutil.get_terminal_size().columns - 1]
        if line != self._shown:
            self._shown = line
            self._write(f"{_CLEAR}{line}")

    def done(self, text: str) -> None:
        """Print *text* as a permanent line."""
        self.clear()
        self._write(f"{self._stamped(text)}\n")

    def clear(self) -> None:
        """Clear the changing line."""
        if self._shown:
            self._shown = ""
            self._write(_CLEAR)

    def _stamped(self, text: str) -> str:
        return f"[{self.seconds:4.0f} s] {text}"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
