"""A server of the benchmark: started in a process group of its own, waited for, read, and stopped."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.server.hosts import Host, merged_environment
from benchmarks.server.policies import Policy
from benchmarks.server.process import Declared, Process
from benchmarks.server.simulated import environment
from benchmarks.server.starting import Start
from sglang_adaptive.client import Client, RequestError
from sglang_adaptive.cpu_engine.server import free_port

_TIER = re.compile(r"Built adaptive runtime state steps=(\d+): elapsed=([\d.]+)\s*s, mem=(-?[\d.]+)\s*GB")


class Running:
    """A server that runs, whoever started it."""

    def __init__(self, policy: Policy, folder: Path, port: int, command: Sequence[str], plugins: str) -> None:
        self.policy, self.folder, self.command, self.plugins = policy, folder, list(command), plugins
        self.log = folder / f"{policy.name}.log"
        self.client = Client("127.0.0.1", port, timeout=600)
        self.process = Process(folder / f"{policy.name}.acceptance")
        self.start_seconds: float | None = None
        self.alone = True
        """Whether no other server of the run started meanwhile; the GB of a depth are what is free on the GPU less."""
        self.pid: int | None = None
        self.scratch: str | None = None
        """Folder of the server's temporary files: SGLang never removes those of its sockets."""

    @property
    def name(self) -> str:
        return self.policy.name

    def is_running(self) -> bool:
        """Return whether the first process of the server is there."""
        try:
            os.kill(self.pid or 0, 0)
        except OSError:
            return False
        return self.pid is not None

    def stop(self) -> None:
        """Stop every process of the server; does nothing when it is stopped already."""
        if self.pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            # SGLang ends at once on SIGINT; on SIGTERM it looks only every five seconds whether it may.
            os.kill(self.pid, signal.SIGINT)
            deadline = time.monotonic() + 15
            while self.is_running() and time.monotonic() < deadline:
                time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.pid = None
        self._record().unlink(missing_ok=True)
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def force(self, steps: int | None) -> None:
        """Hold the depth, or release it with None. Raises ValueError where this is not one of our adaptive servers."""
        if not self.policy.ours:
            raise ValueError(f"{self.name} has no adaptive_force_steps: only servers with this package's plugin do")
        self.client.force_steps(steps)

    def adaptive(self) -> dict[str, Any] | None:
        """Return what the plugin says of itself in /server_info, None for a stock server or one that is gone."""
        try:
            found: dict[str, Any] | None = self.client.server_info()["internal_states"][0].get("adaptive")
        except (OSError, RequestError):
            return None
        return found

    def log_tail(self, lines: int = 25) -> str:
        """Return the last lines of the log, each cut at 300 characters."""
        text = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(line[:300] for line in text[-lines:])

    def startup(self) -> dict[str, Any]:
        """Return the seconds until the server answered, what each tier took, from the log, and if it started alone."""
        tiers = tiers_built(self.log.read_text(errors="replace"))
        totals = {key: round(sum(tier[key] for tier in tiers), 3) for key in ("seconds", "gb")}
        return {"seconds": self.start_seconds, "alone": self.alone, "tiers": tiers, "tiers_total": totals}

    def leave(self) -> None:
        """Write down how to find this server again with :func:`attach`."""
        record = {
            "port": self.client.port, "command": self.command, "plugins": self.plugins,
            "start_seconds": self.start_seconds, "alone": self.alone, "pid": self.pid, "scratch": self.scratch,
        }  # fmt: skip
        self._record().write_text(json.dumps(record))

    def _record(self) -> Path:
        return self.folder / f"{self.name}.running"


def attach(policy: Policy, folder: Path) -> Running:
    """Return a server that was left running. Raises ValueError when there is none."""
    try:
        record = json.loads((folder / f"{policy.name}.running").read_text())
    except FileNotFoundError:
        raise ValueError(f"{policy.name} was not left running in {folder}") from None
    server = Running(policy, folder, record["port"], record["command"], record["plugins"])
    for name in ("start_seconds", "alone", "pid", "scratch"):
        setattr(server, name, record[name])
    return server


class Server(Running):
    """A server that is started here."""

    def __init__(self, policy: Policy, host: Host, folder: Path, profiles: Path, simulate: bool = True) -> None:
        port = free_port()
        Process(folder / f"{policy.name}.acceptance", create=True).declared = Declared(0.6)
        own = host.environment(policy)
        super().__init__(policy, folder, port, host.command(policy, folder, profiles, port), own["SGLANG_PLUGINS"])
        simulation = environment(self.process.path, folder / "plugin", simulate and policy.speculate)
        self.environment = merged_environment(own, simulation)
        self._start: Start | None = None

    def launch(self) -> None:
        """Start the processes and return; :meth:`wait` says when they answer, :meth:`stop` is the caller's."""
        self._start = Start(self.name, self.command, self.environment, self.log)
        self.scratch, self.pid = self._start.scratch, self._start.process.pid

    def wait(self, deadline: float) -> None:
        """Return when the server answers. Raises NotStarted when it ends, or does not until *deadline* (monotonic)."""
        assert self._start is not None
        self.start_seconds = self._start.wait(deadline, self.is_running, lambda: f"\n{self.log_tail()}")

    def is_running(self) -> bool:
        return self._start is not None and self._start.is_running()

    def stop(self) -> None:
        super().stop()
        if self._start is not None:
            self._start.process.wait()


def tiers_built(log: str) -> list[dict[str, float]]:
    """Return depth, seconds and GB of every tier that SGLang's log says was built beside the launch depth's."""
    found = (match.groups() for match in _TIER.finditer(log))
    return [{"steps": int(steps), "seconds": float(seconds), "gb": float(gb)} for steps, seconds, gb in found]
