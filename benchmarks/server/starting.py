"""A process group for a server: begun with a log and a scratch folder of its own, and waited for."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sglang_adaptive.cpu_engine.boot_log import BootLog


class NotStarted(RuntimeError):
    """The server did not come up; the message ends with what its log last said."""


class Start:
    """A server that was begun; ``process`` is its first one, the leader of its group."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name, self.log = name, log
        self._begin = time.monotonic()
        # Not below the results: paths of sockets must be short.
        self.scratch = tempfile.mkdtemp(prefix="bench-")
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, env={**environment, "TMPDIR": self.scratch}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def is_running(self) -> bool:
        """Return whether the first process is there."""
        return self.process.poll() is None

    def wait(self, deadline: float, is_well: Callable[[], bool], last_words: Callable[[], str]) -> float:
        """Return the seconds until the server answered.

        Raises NotStarted, with *last_words* after a colon, when it is not well, or does not answer until *deadline*
        (monotonic).
        """
        boot = BootLog(self.log)
        while True:
            boot.new_stages()
            if boot.ready:
                return time.monotonic() - self._begin
            if not is_well():
                raise NotStarted(f"{self.name} ended while it started:{last_words()}")
            if time.monotonic() > deadline:
                waited = time.monotonic() - self._begin
                raise NotStarted(f"{self.name} was not ready after {waited:.0f} s:{last_words()}")
            time.sleep(0.2)
