"""Turns Ctrl-C and similar signals into one exception, which `StopSignals.held` defers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """The command must stop because of the signal `signum`."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """The shell's code for a command that ended by this signal."""
        return 128 + self.signum


class StopSignals:
    """Raises Interrupted in the main thread on Ctrl-C, `kill` and a closed terminal, while entered.

    A signal that was ignored when the command began, as under nohup, stays ignored.
    """

    def __init__(self) -> None:
        self._previous: dict[signal.Signals, Any] = {}
        self._holds = 0
        self._pending: int | None = None

    def __enter__(self) -> StopSignals:
        for signum in STOPPING:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                self._previous[signum] = signal.signal(signum, self._arrived)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Defer signals inside the ``with``; one that arrives is raised after it."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
        if self._pending is not None and not self._holds:
            signum, self._pending = self._pending, None
            raise Interrupted(signum)

    def _arrived(self, signum: int, frame: FrameType | None) -> None:
        if self._holds:
            self._pending = signum
        else:
            raise Interrupted(signum)
