"""Servers that tests share: those of the running test and of the next tests, as far as there is room.

A fleet knows whose turn it is and which tests are left. It starts the servers of that test, then those that are needed
next, and stops all others; a stopped server is started again for its next test. No test holds a server past its turn,
so only the running test ever waits for room.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Condition, Event, Thread
from typing import Any, Protocol

import psutil
import pytest

MOST_ALIVE = 3
"""Unless one test needs more."""
BOOTS_AT_ONCE = 2
SERVER_BYTES = 3 * 10**9
"""Memory of the largest server; this much must be available before another one starts."""
WAIT_SECONDS = 300.0
"""How long a test waits for its servers: half a test's time limit.

A start took 140 s where five processes competed for each core. After a failed wait, the next wait for that server is
half as long, so a server that never starts costs a run at most two such waits.
"""
ATTEMPTS = 2
"""Failed starts in a row after which no test waits for the server any more."""
POLL_SECONDS = 0.1


class Server(Protocol):
    """What a fleet uses of a `CpuServer`."""

    def launch(self) -> None: ...
    def poll(self) -> bool: ...
    def is_running(self) -> bool: ...
    def stop(self) -> None: ...


Make = Mapping[str, Callable[[], Any]]
"""From a server's name to a function that creates it for each start."""
Needs = Mapping[str, Sequence[str]]
"""From tests, in run order, to the names of their servers."""


class NoServerError(RuntimeError):
    """A test did not get its server; the message says why."""


class _Life:
    """A server from start to stop; its own thread starts, keeps and stops it."""

    def __init__(self) -> None:
        self.server: Server | None = None
        self.ready = False
        self.over = Event()
        """Set to request a stop. The server takes room until it has stopped."""

    def __str__(self) -> str:
        return "stopping" if self.over.is_set() else "ready" if self.ready else "starting"


def available_bytes() -> int:
    """Return how much memory processes can still take."""
    return int(psutil.virtual_memory().available)


class Fleet:
    """A set of servers, of which those run that are needed next."""

    def __init__(
        self,
        make: Make,
        *,
        available: Callable[[], int] = available_bytes,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._make, self._available = make, available
        self._patience = defaultdict(lambda: wait_seconds)  # seconds, by server name
        self._changed = Condition()  # holds the lock of everything below
        self._lives: dict[str, _Life] = {}
        self._failures: defaultdict[str, list[Exception]] = defaultdict(list)
        self._test, self._needs, self._coming, self._begin = "", set[str](), dict[str, Sequence[str]](), 0.0
        self._taken: set[str] = set()

    def turn(self, test: str, needs: Sequence[str], coming: Needs) -> None:
        """Start the turn of *test*, which needs the servers *needs*; the tests of *coming* follow."""
        with self._changed:
            self._test, self._needs, self._coming = test, set(needs), dict(coming)
            self._begin = time.monotonic()
            self._taken.clear()
            self._arrange()

    def take(self, name: str) -> Any:
        """Return the server, ready to answer, for the rest of the turn.

        Raises NoServerError if it does not start, or if there is no room for it in time.
        """
        with self._changed:
            self._needs.add(name)
            while True:
                life = self._lives.get(name)
                if life is not None and life.ready and life.server is not None and not life.over.is_set():
                    if life.server.is_running():
                        self._taken.add(name)
                        return life.server
                    life.over.set()
                failures, left = self._failures[name], self._begin + self._patience[name] - time.monotonic()
                if len(failures) >= ATTEMPTS:
                    raise NoServerError(f"{name} does not come up: {failures[-1]}") from failures[-1]
                if left <= 0:
                    refusal = NoServerError(self._why_not(name))
                    self._patience[name] /= 2
                    raise refusal
                self._arrange()
                self._changed.wait(min(left, 1.0))  # free memory sends no notification

    def discard(self) -> None:
        """Stop the servers taken in this turn: the test may have left them in any state."""
        with self._changed:
            for name in self._taken & self._lives.keys():
                self._lives[name].over.set()

    def close(self) -> None:
        """Stop all servers, including those that start, and wait until they have stopped."""
        self.turn("", (), {})
        with self._changed:
            self._changed.wait_for(lambda: not self._lives)

    def _arrange(self) -> None:
        wanted = self._wanted(MOST_ALIVE)
        ending = any(life.over.is_set() for life in self._lives.values())
        if not (self._needs <= self._lives.keys() or ending or self._memory()):
            wanted = self._wanted(0)
        for name, life in self._lives.items():
            if name not in wanted:
                life.over.set()
        for name in wanted:
            if name not in self._lives and len(self._failures[name]) < ATTEMPTS:
                starting = [life for life in self._lives.values() if not life.ready]
                room = len(self._lives) < max(MOST_ALIVE, len(self._needs)) and len(starting) < BOOTS_AT_ONCE
                if not (room and self._memory()):
                    return
                self._lives[name] = life = _Life()
                Thread(target=self._live, args=(name, life), daemon=True).start()

    def _wanted(self, most: int) -> list[str]:
        """Return the servers of this turn, then those that are needed next, up to *most*."""
        wanted = dict.fromkeys(sorted(self._needs))
        for needs in self._coming.values():
            for name in needs:
                if len(wanted) >= most:
                    return list(wanted)
                wanted.setdefault(name)
        return list(wanted)

    def _memory(self) -> bool:
        """Return whether there is memory for one more server besides those that are starting."""
        starting = sum(not life.ready for life in self._lives.values())
        return self._available() >= (starting + 1) * SERVER_BYTES

    def _live(self, name: str, life: _Life) -> None:
        try:
            life.server = server = self._make[name]()
            server.launch()
            while not server.poll():
                if life.over.wait(POLL_SECONDS):
                    return
            with self._changed:
                life.ready = True
                for kept in (self._failures, self._patience):
                    kept.pop(name, None)
                self._arrange()
                self._changed.notify_all()
            life.over.wait()
        except Exception as error:
            with self._changed:
                self._failures[name].append(error)
        finally:
            try:
                if life.server is not None:
                    life.server.stop()
            finally:
                with self._changed:
                    del self._lives[name]
                    self._arrange()
                    self._changed.notify_all()

    def _why_not(self, name: str) -> str:
        tests = {self._test: self._needs, **self._coming}
        who = "; ".join(
            f"{other} is {life}, for {next((test for test, needs in tests.items() if other in needs), 'no test')}"
            for other, life in self._lives.items()
        )
        return (
            f"no {name} for {self._test} after {self._patience[name]:g} s: {who or 'no server runs'}; "
            f"{self._available() / 1e9:.1f} GB of memory are available, a start wants {SERVER_BYTES / 1e9:.1f}"
        )


class SharedServers:
    """A pytest plugin that tells a fleet whose turn it is; *needs* returns the names of a test's servers."""

    def __init__(self, needs: Callable[[pytest.Item], Sequence[str]]) -> None:
        self._needs_of = needs
        self._left: dict[str, Sequence[str]] = {}
        self._fleet: Fleet | None = None
        self._turn: tuple[str, Sequence[str]] = ("", ())
        self._failed = False

    @contextmanager
    def opened(self, fleet: Fleet) -> Iterator[Fleet]:
        """Tell *fleet* about every turn, starting with the current one; close it afterwards."""
        self._fleet = fleet
        fleet.turn(*self._turn, self._left)
        try:
            yield fleet
        finally:
            self._fleet = None
            fleet.close()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._left = {item.nodeid: needs for item in session.items if (needs := self._needs_of(item))}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._begin(item.nodeid, self._left.pop(item.nodeid, ()))
        try:
            return (yield)
        finally:
            if self._failed and self._fleet is not None:
                self._fleet.discard()
            self._begin("", ())

    def _begin(self, test: str, needs: Sequence[str]) -> None:
        self._turn, self._failed = (test, needs), False
        if self._fleet is not None:
            self._fleet.turn(test, needs, self._left)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self._failed |= report.failed
        return report
