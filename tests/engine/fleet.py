"""Servers that tests share: started in the background, two at a time, and stopped after the last test of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from sglang_adaptive.cpu_engine.server import CpuServer

BOOTS_AT_ONCE = 2
"""Start-up is imports, which take a core each; more at once would only delay the first."""


class Fleet:
    """The servers that *uses* counts, started in the order of *servers*."""

    def __init__(self, servers: Mapping[str, CpuServer], uses: Counter[str]) -> None:
        self._servers = {name: server for name, server in servers.items() if uses[name]}
        self._uses = uses
        self._pool = ThreadPoolExecutor(BOOTS_AT_ONCE)
        self._boots: dict[str, Future[None]] = {
            name: self._pool.submit(server.start) for name, server in self._servers.items()
        }
        self._stops: list[Future[None]] = []

    def take(self, name: str) -> CpuServer:
        """Return a server that answers. Raises ServerError when it did not come up."""
        self._boots[name].result()
        return self._servers[name]

    def release(self, name: str) -> None:
        """Say that one of the counted uses is over; after the last one the server is stopped, in the background."""
        self._uses[name] -= 1
        if self._uses[name] == 0:
            self._stops.append(self._pool.submit(self._servers[name].stop))

    def close(self) -> None:
        """Stop what still runs or starts."""
        for boot in self._boots.values():
            boot.cancel()
        for server in self._servers.values():
            server.stop()  # ends a start that is under way, too
        self._pool.shutdown()
        for stop in self._stops:
            stop.result()
        for server in self._servers.values():
            server.stop()
