"""Servers that tests share: started in the background, two at a time, and stopped after the last test of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event, Lock, Semaphore

from sglang_adaptive.cpu_engine.server import CpuServer

BOOTS_AT_ONCE = 2
"""Start-up is imports, which take a core each; more at once would only delay the first."""
MOST_ALIVE = 3
"""A server takes 2.5 GB, two ranks or replicas 4, and a few tests start more of their own."""


class Fleet:
    """The servers that *uses* counts, started in the order of *make*.

    A server is made when its turn comes: it chooses its port then, and one chosen minutes before is taken by others.
    """

    def __init__(self, make: Mapping[str, Callable[[], CpuServer]], uses: Counter[str]) -> None:
        self._make = {name: create for name, create in make.items() if uses[name]}
        self._uses = uses
        self._servers: dict[str, CpuServer] = {}
        self._ready: dict[str, Future[CpuServer]] = {name: Future() for name in self._make}
        self._room = Semaphore(MOST_ALIVE)
        self._turns, self._turn = iter(self._make), Lock()
        self._closing = Event()
        self._pool = ThreadPoolExecutor(BOOTS_AT_ONCE)
        for _ in self._make:
            self._pool.submit(self._boot_next)
        self._stopping = ThreadPoolExecutor(1)  # a stop makes room, so it never waits behind a boot
        self._stops: list[Future[None]] = []

    def _boot_next(self) -> None:
        # One waits for room at a time, and the turn is drawn with the room in hand. Otherwise a server of later tests
        # could take the room that the tests before them wait for.
        with self._turn:
            while not self._room.acquire(timeout=0.2):
                if self._closing.is_set():
                    return
            name = next(self._turns)
        try:
            server = self._servers[name] = self._make[name]()
            server.start()
        except BaseException as error:
            self._room.release()
            self._ready[name].set_exception(error)
        else:
            self._ready[name].set_result(server)

    def take(self, name: str) -> CpuServer:
        """Return a server that answers. Raises ServerError when it did not come up."""
        return self._ready[name].result()

    def release(self, name: str) -> None:
        """Say that one of the counted uses is over; after the last one the server is stopped, in the background."""
        self._uses[name] -= 1
        if self._uses[name] == 0:
            self._stops.append(self._stopping.submit(self._stop, name))

    def _stop(self, name: str) -> None:
        self._servers[name].stop()
        self._room.release()

    def close(self) -> None:
        """Stop what still runs or starts."""
        self._closing.set()
        for server in list(self._servers.values()):
            server.stop()  # ends a start that is under way, too
        self._pool.shutdown(cancel_futures=True)
        self._stopping.shutdown()
        for stop in self._stops:
            stop.result()
        for server in self._servers.values():
            server.stop()
