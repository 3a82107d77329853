"""A server of a family: its command line, its start in a process group of its own, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from benchmarks.architectures import shapes, weights
from benchmarks.architectures.families import Family
from benchmarks.server.hosts import OURS, merged_environment
from benchmarks.server.starting import Start
from sglang_adaptive.client import Client
from sglang_adaptive.cpu_engine.server import free_port

LARGEST_BATCH = 32
_GPU = (
    *("--load-format", "dummy", "--skip-tokenizer-init", "--disable-radix-cache", "--dtype", "bfloat16"),
    # The pool is capped by tokens: a share of memory would depend on which server allocates first.
    *("--mem-fraction-static", "0.85", "--max-total-tokens", "24576", "--context-length", "1024"),
    *("--max-running-requests", str(LARGEST_BATCH), "--cuda-graph-bs-decode", "1", "8", str(LARGEST_BATCH)),
    *("--cuda-graph-backend-prefill", "disabled", "--sampling-backend", "pytorch", "--watchdog-timeout", "300"),
    "--disable-flashinfer-autotune",  # it searches for speed, which no family is judged by, for up to a minute
)
_CPU = ("--disable-radix-cache", "--max-running-requests", str(LARGEST_BATCH))
CRASH = "Scheduler hit an exception"
_ERROR = re.compile(r"^(?:\[[^\]]*\] )?(?:\w+\.)*(\w*(?:Error|Exception|Refused|Exit|Interrupt)): ?(.*)$")


_STARTED: list[ArchitectureServer] = []


def stop_all() -> None:
    """End every server that this process started."""
    for server in _STARTED:
        server.stop()


class Kind(Enum):
    """What a server speculates with; each value is the end of its log's name."""

    ADAPTIVE = ""
    """The throughput policy, with this package's plugin."""

    REFERENCE = "-reference"
    """No speculation."""

    STATIC = "-static"
    """SGLang's own static speculation."""


class ArchitectureServer(Client):
    """One server of *family*."""

    def __init__(self, family: Family, folder: Path, kind: Kind, cpu: bool = False) -> None:
        super().__init__("127.0.0.1", free_port(), timeout=100)
        self.name = f"{family.name}{kind.value}"
        self.log = folder / f"{self.name}.log"
        self.start_seconds: float | None = None
        self.command = self._command(family, folder, kind, cpu)
        self._environment = self._variables(family, folder, kind, cpu)
        self._start: Start | None = None

    def _command(self, family: Family, folder: Path, kind: Kind, cpu: bool) -> list[str]:
        target = str(shapes.write(folder / "models" / family.name, family.target))
        given = ["--model-path", target, *(_CPU if cpu else _GPU), *family.arguments]
        if kind is not Kind.REFERENCE:
            drafts = family.launch if kind is Kind.ADAPTIVE else family.static
            given += ["--speculative-algorithm", family.algorithm, *drafts]
            if family.draft is not None:
                draft = shapes.write(folder / "models" / f"{family.name}-draft", family.draft)
                given += ["--speculative-draft-model-path", str(draft)]
        if kind is Kind.ADAPTIVE:
            given += ["--speculative-adaptive-config", str(_configuration(family, folder))]
        if cpu:
            from sglang_adaptive.cpu_engine.launcher import default_arguments

            given += default_arguments(given)
        where = ["--host", self.host, "--port", str(self.port)]
        return [sys.executable, "-m", "sglang.launch_server", *given, *where]

    def _variables(self, family: Family, folder: Path, kind: Kind, cpu: bool) -> dict[str, str]:
        plugins = [weights.ENTRY_POINT, *([OURS] if kind is Kind.ADAPTIVE else [])]
        host: Mapping[str, str] = {}
        if cpu:
            from sglang_adaptive.cpu_engine.launcher import environment
            from sglang_adaptive.cpu_engine.names import PLUGIN

            plugins, host = [*plugins, PLUGIN], environment()
        own = {"SGLANG_PLUGINS": ",".join(plugins), **family.variables}
        inherited = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        return merged_environment(weights.environment(folder / "plugin"), inherited, host, own)

    def start(self) -> None:
        """Start the processes and return; ``wait`` says when they answer, ``stop`` is the caller's."""
        _STARTED.append(self)
        self._start = Start(self.name, self.command, self._environment, self.log)

    def wait(self, deadline: float) -> None:
        """Return when the server answers. Raises NotStarted when it ends, or does not until *deadline* (monotonic)."""
        assert self._start is not None
        self.start_seconds = round(self._start.wait(deadline, self.is_well, lambda: f" {self.last_error()}"), 1)

    def is_running(self) -> bool:
        """Return whether the server's first process is there."""
        return self._start is not None and self._start.is_running()

    def is_well(self) -> bool:
        """Return whether the server runs and no scheduler has failed; SGLang ends up to a minute after that."""
        return self.is_running() and CRASH not in self.log.read_text(errors="replace")

    def stop(self) -> None:
        """End every process of the server; does nothing when it was not started."""
        if self._start is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._start.process.pid, signal.SIGKILL)
        self._start.process.wait()
        shutil.rmtree(self._start.scratch, ignore_errors=True)

    def last_error(self) -> str:
        """Return the log's last line that names an exception, else its last line; at most 400 characters."""
        return last_error(self.log.read_text(errors="replace") if self.log.exists() else "")


def last_error(log: str) -> str:
    """Return the last line of *log* that names an exception, else its last line; at most 400 characters.

    The processes that SGLang ends because another one failed report an exit of their own; those lines do not count.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    named = [found for found in map(_ERROR.match, lines) if found and found[1] not in ("SystemExit", "Exit")]
    causes = [found for found in named if "Rank 0 scheduler" not in found[2] and "scheduler died" not in found[2]]
    chosen = (causes or named)[-1:]
    return (f"{chosen[0][1]}: {chosen[0][2]}" if chosen else (lines or [""])[-1])[:400]


def _configuration(family: Family, folder: Path) -> Path:
    learnt = str(folder / "learnt" / family.name)
    throughput = {"candidate_steps": list(family.depths), "profile_dir": learnt}
    path = folder / "models" / f"{family.name}.adaptive.json"
    warm_up = {} if family.warm_up is None else {"warm_up": family.warm_up}
    path.write_text(json.dumps({"policy": "throughput", **warm_up, "throughput": throughput}), encoding="utf-8")
    return path
