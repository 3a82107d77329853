"""A server on the CPU engine as a context manager, its port, and the start-up progress of any server from its log."""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from sglang_adaptive.client import Client
from sglang_adaptive.serve_cpu import command, environment

GRACE_SECONDS = 10.0
POLL_SECONDS = 0.1

READY = "ready"

# SGLang's log lines, in this order, and the stages that they indicate.
_STAGES: tuple[tuple[str, str], ...] = (
    ("server_args=", "arguments accepted, starting processes"),
    ("Init parallel begin", "processes started"),
    ("Load weight begin", "loading weights"),
    ("Memory pool end", "KV cache allocated"),
    ("Uvicorn running on", "listening"),
    ("The server is fired up and ready to roll", READY),
)
_TAKEN = "address already in use"  # another process took the port; SGLang continues without HTTP


# Ports, which the processes of one host do not take from one another while their servers start.


_SGLANGS = 22000
"""From here to 29999, SGLang 0.5.23 draws each server's port for NCCL, which its ranks bind much later."""
_OFFSET = 233
"""From a server's port to the ports that SGLang derives from it with attention DP, one for each rank and six more."""
_APART = 16
"""Ports from one server to the next."""
_KEPT = 24
"""Ports that a process keeps for itself, the latest."""

_held: deque[socket.socket] = deque()
"""Sockets whose name is this process's claim to a port; the system frees them when it ends."""


class ServerError(RuntimeError):
    """The server did not start, or has ended; the message ends with the last lines of its log if it has one."""


def free_port() -> int:
    """Return a port of 127.0.0.1 on which no process listens, and which no other process gets from here.

    It is below the system's range of outgoing connections, if known, and below the ports that SGLang draws. Either
    could take it in the seconds before the server binds it. The 15 ports after it are no server's, nor are those that
    SGLang derives from it. The claim lasts until this process ends or has got 24 others. Raises ServerError.
    """
    ports = list(_ports())
    random.shuffle(ports)
    for port in ports:
        claim = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe:
            try:
                claim.bind(f"\0sglang-adaptive-port-{port}")  # a name without a file, of the same network namespace
                probe.bind(("127.0.0.1", port))
            except OSError:
                claim.close()  # a process, perhaps this one, has claimed the port or listens on it
                continue
        _held.append(claim)
        if len(_held) > _KEPT:
            _held.popleft().close()
        return port
    raise ServerError(f"no free port between {ports and min(ports)} and {ports and max(ports)}")


def _ports() -> Iterator[int]:
    """Yield the ports for servers; none is among those that SGLang derives from another."""
    try:
        outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        outgoing = 32768  # Linux's default; other systems begin higher
    end = max(2048, min(outgoing, _SGLANGS))
    for first in range(max(1024, end // 2), end - 2 * _OFFSET + 1, 2 * _OFFSET):
        yield from range(first, first + _OFFSET - _APART, _APART)


class BootLog:
    """Reads the log file from its beginning; each call reads only the new part."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self._waiting = list(_STAGES)
        self.ready = False
        self.port_taken = False

    def new_stages(self) -> list[str]:
        """Return the stages reached since the last call; a skipped stage is reported with the next one."""
        with self._path.open("rb") as log:
            log.seek(self._offset)
            chunk = log.read()
        self._offset += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        reached: list[str] = []
        for line in lines:
            text = line.decode(errors="replace")
            self.port_taken = self.port_taken or _TAKEN in text
            for index, (mark, _) in enumerate(self._waiting):
                if mark in text:
                    reached += [stage for _, stage in self._waiting[: index + 1]]
                    del self._waiting[: index + 1]
                    break
        self.ready = self.ready or READY in reached
        return reached


class PortTakenError(ServerError):
    """Another process has taken the server's port; another server may start."""


class CpuServer(Client):
    """Runs `sglang-adaptive serve-cpu ARGUMENTS` on a free port of 127.0.0.1, in its own process group.

    Use as a context manager; leaving it in any way, including Ctrl-C, stops the whole group. `on_progress(stage)` is
    called while the server starts. `log` is the file for its output, by default a temporary one.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        threads: int = 1,
        log: Path | None = None,
        extra_environment: Mapping[str, str] | None = None,
        on_progress: Callable[[str], None] | None = None,
        start_timeout: float = 300.0,
    ) -> None:
        super().__init__("127.0.0.1", free_port())
        own = ["--host", self.host, "--port", str(self.port)]
        self.command = command([*arguments, *own])
        self.environment = {**os.environ, **environment(threads), **(extra_environment or {})}
        self.log_path = log or Path(tempfile.mkstemp(prefix="sglang-adaptive-", suffix=".log")[1])
        self.on_progress = on_progress or (lambda stage: None)
        self.start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._boot = BootLog(self.log_path)
        self._begin = 0.0
        self._scratch = ""

    def __enter__(self) -> CpuServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """Process id of the server's first process, the group leader; None while stopped."""
        return None if self._process is None else self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start and wait until the server answers. Raises ServerError; stops the server on any exception."""
        try:
            self.launch()
            while not self.poll():
                time.sleep(POLL_SECONDS)
        except BaseException:
            self.stop()
            raise

    def launch(self) -> None:
        """Start the server's processes and return; the caller waits with `poll` and stops them with `stop`."""
        atexit.register(self.stop)
        self._begin = time.monotonic()
        # SGLang never removes its socket files.
        self._scratch = tempfile.mkdtemp(prefix="sglang-adaptive-")
        variables = {**self.environment, "TMPDIR": self._scratch}
        with self.log_path.open("wb") as log:
            self._process = self._open(variables, log)
        self._boot = BootLog(self.log_path)

    def _open(self, variables: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start the first process with *variables* and its output in *log*; tests override this."""
        return subprocess.Popen(
            self.command, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    def poll(self) -> bool:
        """Return whether the launched server answers; report new stages.

        Raises ServerError when it has ended, cannot get its port, or is not ready after `start_timeout` seconds.
        """
        assert self._process is not None
        waited = time.monotonic() - self._begin
        for stage in self._boot.new_stages():
            self.on_progress(stage)
        if self._boot.ready:
            return True
        if self._process.poll() is not None:
            raise ServerError(f"the server ended with code {self._process.returncode}:\n{self.log_tail()}")
        if self._boot.port_taken:
            raise PortTakenError(f"another process has taken port {self.port}:\n{self.log_tail()}")
        if waited > self.start_timeout:
            raise ServerError(f"the server was not ready after {waited:.0f} s:\n{self.log_tail()}")
        return False

    def leave_running(self) -> int:
        """Keep the server running after this object; return the id of the process that the user has to end."""
        assert self._process is not None
        pid, self._process = self._process.pid, None
        atexit.unregister(self.stop)
        return pid

    def stop(self) -> None:
        """Stop every process of the server; does nothing when it is already stopped."""
        process, self._process = self._process, None
        atexit.unregister(self.stop)
        if process is None:
            return
        try:
            # SGLang ends at once on SIGINT; on SIGTERM it checks only every five seconds. Without its port it ends on
            # neither.
            process.send_signal(signal.SIGINT)
            process.wait(0.0 if self._boot.port_taken else GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            shutil.rmtree(self._scratch, ignore_errors=True)

    def log_tail(self) -> str:
        """Return the last 15 lines of the log, each cut at 300 characters."""
        text = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join(line[:300] for line in text[-15:])
