"""Servers of the tests as forks of one process that has imported SGLang: seven seconds of a core less for each start.

Run as ``python -m tests.forked_servers``, it imports what a server imports. For every JSON line on standard input it
forks a child that becomes ``python -m sglang_adaptive.cpu_engine.start ARGUMENTS``, or tells how an earlier one ended.
The demos, and the server that is started with ``sglang serve``, begin as new processes.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

from sglang_adaptive.cpu_engine import start
from sglang_adaptive.cpu_engine.launcher import environment
from sglang_adaptive.cpu_engine.server import CpuServer

ROOT = Path(__file__).parents[1]
MODULE = ["-m", "sglang_adaptive.cpu_engine.start"]
POLL_SECONDS = 0.05


class ForkedServer(CpuServer):
    """The same server with a quicker start; a command line of another program starts that program."""

    def _open(self, variables: dict[str, str], log: IO[bytes]) -> Any:
        if self.command[1:3] != MODULE:
            return super()._open(variables, log)
        return _Forked(_farm(), self.command[3:], variables, log.name)


class _Forked:
    """What `subprocess.Popen` is to a child: that of a fork."""

    def __init__(self, farm: _Farm, arguments: list[str], variables: dict[str, str], log: str) -> None:
        self._farm = farm
        self.returncode: int | None = None
        self.pid: int = farm.ask(arguments=arguments, variables=variables, log=log)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._farm.ask(ended=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("a forked server", timeout or 0.0)
            time.sleep(POLL_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class _Farm:
    """Client of the process that forks; it ends with this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked_servers"],
            cwd=ROOT,
            env={**os.environ, **environment()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        assert answer, "the process that forks servers ended"
        return json.loads(answer)


@functools.cache
def _farm() -> _Farm:
    return _Farm()


def _serve() -> None:
    for name in start.MODULES:
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(_ended(**request) if "ended" in request else _forked(**request)), flush=True)


def _ended(ended: int) -> int | None:
    pid, status = os.waitpid(ended, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None


def _forked(arguments: list[str], variables: dict[str, str], log: str) -> int:
    if pid := os.fork():
        return pid
    code = 1
    try:
        _become(variables, log)
        sys.argv = ["sglang_adaptive.cpu_engine.start", *arguments]
        start.main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _become(variables: dict[str, str], log: str) -> None:
    """Take a session, the files and the environment of a new process."""
    os.setsid()
    for path, mode, numbers in ((os.devnull, os.O_RDONLY, (0,)), (log, os.O_WRONLY | os.O_APPEND, (1, 2))):
        file = os.open(path, mode)
        for number in numbers:
            os.dup2(file, number)
        os.close(file)
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    # A variable written anew moves, and setproctitle looks for the old ones behind the command line.
    os.environ.update({name: value for name, value in variables.items() if os.environ.get(name) != value})
    sys.path[1:1] = [part for part in variables["PYTHONPATH"].split(os.pathsep) if part and part not in sys.path]
    tempfile.tempdir = None  # which the imports may have asked for


if __name__ == "__main__":
    _serve()
    os._exit(0)  # taking SGLang's modules down in order costs seconds
