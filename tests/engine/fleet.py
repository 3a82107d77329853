"""Servers that tests share: those of the running test and of the tests after it run, as far as there is room.

A fleet is told whose turn it is and which tests are left. It starts the servers of that test, then those that are
needed next, and stops all others; one that was stopped is started again when its next test comes. So nothing is held
that could be kept: whatever a test does, its servers are free when the next turn begins, and the only one that ever
waits for room is the test whose turn it is.
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
"""What the largest server takes; as much has to be available before another one starts."""
WAIT_SECONDS = 300.0
"""How long a test waits for its servers: half the limit of a test. A start took 140 s where five processes wanted each
core. Who waits next for one that was waited for in vain waits half as long, so that a server that never comes up costs
a run no more than two such waits.
"""
ATTEMPTS = 2
"""Starts in a row that fail before no test waits for the server any more."""
POLL_SECONDS = 0.1


class Server(Protocol):
    """What a fleet uses of a `CpuServer`."""

    def launch(self) -> None: ...
    def poll(self) -> bool: ...
    def is_running(self) -> bool: ...
    def stop(self) -> None: ...


Make = Mapping[str, Callable[[], Any]]
"""From the name of a server to what makes it, anew for each start."""
Needs = Mapping[str, Sequence[str]]
"""From tests, in the order in which they run, to the names of their servers."""


class NoServerError(RuntimeError):
    """A test did not get its server; the message says why."""


class _Life:
    """A server from its start to its end; a thread of its own starts it, keeps it and stops it."""

    def __init__(self) -> None:
        self.server: Server | None = None
        self.ready = False
        self.over = Event()
        """Set when it is to stop. It takes room until it has."""

    def __str__(self) -> str:
        return "stopping" if self.over.is_set() else "ready" if self.ready else "starting"


def available_bytes() -> int:
    """Return how much memory processes may still take."""
    return int(psutil.virtual_memory().available)


class Fleet:
    """Servers of which those run that are needed next."""

    def __init__(
        self,
        make: Make,
        *,
        available: Callable[[], int] = available_bytes,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._make, self._available = make, available
        self._patience = defaultdict(lambda: wait_seconds)  # seconds, by the name of a server
        self._changed = Condition()  # holds the lock of everything below
        self._lives: dict[str, _Life] = {}
        self._failures: defaultdict[str, list[Exception]] = defaultdict(list)
        self._test, self._needs, self._coming, self._begin = "", set[str](), dict[str, Sequence[str]](), 0.0
        self._taken: set[str] = set()

    def turn(self, test: str, needs: Sequence[str], coming: Needs) -> None:
        """Begin the turn of *test*, which needs the servers *needs*; the tests of *coming* follow."""
        with self._changed:
            self._test, self._needs, self._coming = test, set(needs), dict(coming)
            self._begin = time.monotonic()
            self._taken.clear()
            self._arrange()

    def take(self, name: str) -> Any:
        """Return the server, which answers, for as long as the turn lasts.

        Raises NoServerError when it does not come up, or there is no room for it in time.
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
                self._changed.wait(min(left, 1.0))  # nobody says when memory is free again

    def discard(self) -> None:
        """Stop the servers that were taken in this turn: its test may have left them in any state."""
        with self._changed:
            for name in self._taken & self._lives.keys():
                self._lives[name].over.set()

    def close(self) -> None:
        """Stop what runs or starts, and wait until it has stopped."""
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
        """Return the servers of this turn, and those that are needed next up to *most*."""
        wanted = dict.fromkeys(sorted(self._needs))
        for needs in self._coming.values():
            for name in needs:
                if len(wanted) >= most:
                    return list(wanted)
                wanted.setdefault(name)
        return list(wanted)

    def _memory(self) -> bool:
        """Return whether there is memory for one more server, beside those that start."""
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
    """A plugin of pytest that tells a fleet whose turn it is; *needs* returns the names of the servers of a test."""

    def __init__(self, needs: Callable[[pytest.Item], Sequence[str]]) -> None:
        self._needs_of = needs
        self._left: dict[str, Sequence[str]] = {}
        self._fleet: Fleet | None = None
        self._turn: tuple[str, Sequence[str]] = ("", ())
        self._failed = False

    @contextmanager
    def opened(self, fleet: Fleet) -> Iterator[Fleet]:
        """Let *fleet* know of every turn from the running one on; close it afterwards."""
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
