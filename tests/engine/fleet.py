"""Servers that tests share: those of the running test and of the next tests, as far as there is room."""

from __future__ import annotations

import time
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
"""Memory of the largest server; this much must be available before one starts ahead."""
ATTEMPTS = 2
"""Failed starts after which no test waits for the server any more."""


class Fleet:
    """Servers by name; *make* creates one for each start."""

    def __init__(self, make: Mapping[str, Callable[[], CpuServer]]) -> None:
        self._make = make
        self._running: dict[str, CpuServer] = {}
        self._needs, self._taken, self._wanted = set[str](), set[str](), dict[str, None]()
        self._failures: dict[str, list[Exception]] = {name: [] for name in make}

    def turn(self, needs: Sequence[str], coming: Iterable[Sequence[str]]) -> None:
        """Begin the turn of a test that needs the servers *needs*; later tests need those of *coming*.

        Stops the servers that are not needed soon, and starts the next ones in the background.
        """
        self._needs, self._taken, self._wanted = set(needs), set(), dict.fromkeys(needs)
        for name in chain.from_iterable(coming):
            if len(self._wanted) >= MOST_ALIVE:
                break
            self._wanted.setdefault(name)
        self._stop(self._running.keys() - self._wanted)
        self._launch_what_fits()

    def take(self, name: str) -> CpuServer:
        """Return the server, ready to answer, for the rest of the turn. Raises what its last start raised."""
        self._needs.add(name)
        self._taken.add(name)
        while len(self._failures[name]) < ATTEMPTS:
            if name in self._running and not self._is_ready(name):
                time.sleep(POLL_SECONDS)
            elif name in self._running and self._running[name].is_running():
                self._launch_what_fits()
                return self._running[name]
            else:
                self._stop({name} & self._running.keys())  # it died since
                if not self._has_memory():
                    self._stop(self._running.keys() - self._needs)
                self._launch(name)
        raise self._failures[name][-1]

    def discard(self) -> None:
        """Stop the servers taken in this turn: the test may have left them in any state."""
        self._stop(self._taken & self._running.keys())

    def close(self) -> None:
        """Stop all servers."""
        self._stop(set(self._running))

    def _launch_what_fits(self) -> None:
        for name in self._wanted:
            room = self._booting() < BOOTS_AT_ONCE and self._has_memory()
            if room and name not in self._running and len(self._failures[name]) < ATTEMPTS:
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

    def _failed(self, name: str, why: Exception) -> None:
        self._failures[name].append(why)
        self._stop({name} & self._running.keys())

    def _stop(self, names: Iterable[str]) -> None:
        for name in names:
            self._running.pop(name).stop()

    def _has_memory(self) -> bool:
        return bool(psutil.virtual_memory().available >= (self._booting() + 1) * SERVER_BYTES)

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
