"""Servers that tests share: those of the running test and of the next tests, as far as there is room."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import psutil
import pytest

from sglang_adaptive.lab.cpu_engine.server import POLL_SECONDS, CpuServer

MOST_ALIVE = 3
"""Unless one test needs more."""
BOOTS_AT_ONCE = 2
SERVER_BYTES = 3 * 10**9
"""Memory of the largest server; this much must be available before another one starts."""
WAIT_SECONDS = 300.0
"""How long a test waits for a server: half a test's time limit."""
ATTEMPTS = 2
"""Failed starts after which no test waits for the server any more."""


class NoServerError(RuntimeError):
    """A test did not get its server; the message says why."""


def available_bytes() -> int:
    """Return how much memory processes can still take."""
    return int(psutil.virtual_memory().available)


class Fleet:
    """Servers by name; *make* creates one for each start."""

    def __init__(
        self,
        make: Mapping[str, Callable[[], CpuServer]],
        *,
        available: Callable[[], int] = available_bytes,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._make, self._available, self._wait_seconds = make, available, wait_seconds
        self._running: dict[str, CpuServer] = {}
        self._needs, self._taken, self._wanted = set[str](), set[str](), dict[str, None]()
        self._failures, self._why = Counter[str](), dict[str, Exception | str]()

    def turn(self, needs: Sequence[str], coming: Iterable[Sequence[str]]) -> None:
        """Begin the turn of a test that needs the servers *needs*; later tests need those of *coming*.

        Stops the servers that are not needed soon, and starts the next ones in the background.
        """
        self._needs, self._taken = set(needs), set()
        self._wanted = dict.fromkeys(needs)
        for name in chain.from_iterable(coming):
            if len(self._wanted) >= MOST_ALIVE:
                break
            self._wanted.setdefault(name)
        for name in self._running.keys() - self._wanted:
            self._stop(name)
        self._launch_what_fits()

    def take(self, name: str) -> CpuServer:
        """Return the server, ready to answer, for the rest of the turn.

        Raises NoServerError if it does not start, or if there is no memory for it in time.
        """
        self._needs.add(name)
        self._taken.add(name)
        end = time.monotonic() + self._wait_seconds
        while self._failures[name] < ATTEMPTS:
            server = self._running.get(name)
            if server is None:
                self._make_room()
                if self._has_memory():
                    self._launch(name)
            elif self._is_ready(name):
                if server.is_running():
                    self._launch_what_fits()
                    return server
                self._stop(name)  # it died since
            if time.monotonic() > end:
                self._failed(name, f"not ready after {self._wait_seconds:g} s, {self._available() / 1e9:.1f} GB free")
                break
            time.sleep(POLL_SECONDS)
        raise NoServerError(f"{name} does not come up: {self._why[name]}")

    def discard(self) -> None:
        """Stop the servers taken in this turn: the test may have left them in any state."""
        for name in self._taken & self._running.keys():
            self._stop(name)

    def close(self) -> None:
        """Stop all servers."""
        self.turn((), ())

    def _launch_what_fits(self) -> None:
        for name in self._wanted:
            room = self._booting() < BOOTS_AT_ONCE and self._has_memory()
            if room and name not in self._running and self._failures[name] < ATTEMPTS:
                self._launch(name)

    def _launch(self, name: str) -> None:
        try:
            self._running[name] = self._make[name]()
            self._running[name].launch()
        except Exception as error:
            self._failed(name, error)

    def _is_ready(self, name: str) -> bool:
        try:
            return self._running[name].poll()
        except Exception as error:
            self._failed(name, error)
            return False

    def _failed(self, name: str, why: Exception | str) -> None:
        self._failures[name] += 1
        self._why[name] = why
        self._stop(name)

    def _stop(self, name: str) -> None:
        if name in self._running:
            self._running.pop(name).stop()

    def _make_room(self) -> None:
        """Stop servers that only later tests need until there is memory for one more."""
        for name in self._running.keys() - self._needs:
            if not self._has_memory():
                self._stop(name)

    def _has_memory(self) -> bool:
        return self._available() >= (self._booting() + 1) * SERVER_BYTES

    def _booting(self) -> int:
        return sum(not self._is_ready(name) for name in list(self._running))


def turns(needs_of: Callable[[pytest.Item], Sequence[str]]) -> Any:
    """Return an automatic fixture that begins the turn of every test that needs servers of the fixture ``fleet``."""

    @pytest.fixture(autouse=True)
    def turn(request: pytest.FixtureRequest, fleet: Fleet) -> Iterator[None]:
        items, failed = request.session.items, request.session.testsfailed
        if needs := needs_of(request.node):
            fleet.turn(needs, map(needs_of, items[items.index(request.node) + 1 :]))
        yield
        if request.session.testsfailed > failed:
            fleet.discard()

    return turn
