"""Starts the demo's servers together, and stops them together, also after an error."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from sglang_adaptive.lab.cpu_engine.server import POLL_SECONDS, CpuServer, ServerError
from sglang_adaptive.lab.demo.errors import DemoError
from sglang_adaptive.lab.demo.progress import Progress
from sglang_adaptive.lab.demo.servers import ServerSpec
from sglang_adaptive.serve_cpu import LaunchError
from sglang_adaptive.signals import StopSignals

LONGEST_TEMPORARY = 80
"""Folder of SGLang's sockets; the path of a socket may have 107 characters."""


class Fleet:
    """Context manager around the servers of *specs*; logs and caches go to *folder*."""

    def __init__(self, specs: Sequence[ServerSpec], folder: Path, signals: StopSignals, progress: Progress) -> None:
        self._titles = {spec.key: spec.title for spec in specs}
        self._stages = dict.fromkeys(self._titles, "starting")
        self._signals = signals
        self._progress = progress
        try:
            self._servers = {spec.key: self._server(spec, folder) for spec in specs}
        except LaunchError as error:
            raise DemoError(str(error)) from error

    def __getitem__(self, key: str) -> CpuServer:
        return self._servers[key]

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.now("stopping the servers")
        with self._signals.held(), ThreadPoolExecutor(len(self._servers)) as pool:
            list(pool.map(CpuServer.stop, self._servers.values()))
        self._progress.clear()

    def boot(self) -> None:
        """Start every server and wait for all. Raises DemoError when one does not start."""
        self._progress.done(f"starting {len(self._servers)} servers: {', '.join(self._titles.values())}")
        for server in self._servers.values():
            with self._signals.held():
                server.launch()
        starting = dict(self._servers)
        while starting:
            for key in [key for key in starting if self._is_ready(key)]:
                del starting[key]
                self._progress.done(f"{self._titles[key]}: ready")
            if starting:
                states = (f"{self._titles[key]}: {self._stages[key]}" for key in starting)
                self._progress.now("; ".join(states))
                time.sleep(POLL_SECONDS)

    def keep(self, key: str) -> int:
        """Leave one server running; return the id of the process that the user has to end."""
        return self._servers.pop(key).leave_running()

    def _server(self, spec: ServerSpec, folder: Path) -> CpuServer:
        def reached(stage: str, seconds: float) -> None:
            self._stages[spec.key] = stage

        return CpuServer(
            spec.arguments,
            log=folder / f"{spec.key}.log",
            extra_environment=_own_places(folder),
            on_progress=reached,
        )

    def _is_ready(self, key: str) -> bool:
        try:
            return self._servers[key].poll()
        except ServerError as error:
            what, _, detail = str(error).partition("\n")
            raise DemoError(f"{self._titles[key]}: {what.rstrip(':')}", detail) from error


def _own_places(folder: Path) -> dict[str, str]:
    """Return variables that keep a server's files in *folder*, so that it reads no profile of earlier servers."""
    places = {"XDG_CACHE_HOME": str(folder / "cache")}
    if len(str(folder)) <= LONGEST_TEMPORARY:
        places["TMPDIR"] = str(folder)
    return places
