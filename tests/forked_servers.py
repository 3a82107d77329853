"""Forks test servers and launches from one process that has imported SGLang, which saves seven CPU seconds per start.

``python -m tests.forked_servers`` imports what a server imports. For every JSON line on standard input it forks a child
that becomes ``python -m sglang_adaptive.lab.cpu_engine.start ARGUMENTS``, another program with a normal start, or a
launch; or it reports how an earlier child ended. The children end with it, and it ends with the process that started
it.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sglang_adaptive.lab.cpu_engine import start
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.lab.cpu_engine.start import PR_SET_PDEATHSIG
from sglang_adaptive.serve_cpu import environment

ROOT = Path(__file__).parents[1]
MODULE = ["-m", "sglang_adaptive.lab.cpu_engine.start"]
FARM = [sys.executable, "-m", "tests.forked_servers"]
"""The command of the process that forks."""
POLL_SECONDS = 0.05
SECONDS_ALLOWED = 300
"""Of a launch: less than a test's time limit, so that no test reads the answer to another test's request."""
OURS = "sglang-adaptive: error: "
"""Prefix of the package's own refusals."""
NO_MODEL = "no/such/model"
"""Neither a folder nor a possible hub name, so the lookup needs no network."""


@dataclass(frozen=True)
class Outcome:
    """How a launch ended."""

    code: int
    output: str
    """Standard output and error together."""


def launch(argv: Sequence[str], before: str = "", **variables: str) -> Outcome:
    """Run ``python -m MODULE ARGUMENTS``, or a console script named MODULE:FUNCTION, on the CPU engine.

    *argv* is [MODULE, *ARGUMENTS]; the child runs the Python code *before* first. Use it only for launches that end by
    themselves: refusals, and test modules that need their own process with SGLang imported. *variables*, which imports
    may read, fork it from another process that has imported SGLang with them.
    """
    farm = _farm(**variables)
    with tempfile.NamedTemporaryFile() as output:
        pid = farm.ask(command=list(argv), variables=farm.variables, log=output.name, before=before)
        code = farm.ask(ended=pid, wait=True)
        return Outcome(code, output.read().decode(errors="replace"))


def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
    """Run ``python -m MODULE ARGUMENTS`` by `launch`, in place of `subprocess.run`; each output has both."""
    outcome = launch(command[2:])
    return subprocess.CompletedProcess(command, outcome.code, outcome.output, outcome.output)


class ForkedServer(CpuServer):
    """The same server with a faster start, unless its command line runs another program."""

    def _open(self, variables: dict[str, str], log: IO[bytes]) -> Any:
        return _Forked(self.command, variables, log.name)


class _Forked:
    """A subset of `subprocess.Popen` for a forked child."""

    def __init__(self, command: list[str], variables: dict[str, str], log: str) -> None:
        self.returncode: int | None = None
        self.pid: int = _farm().ask(command=command, variables=variables, log=log)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = _farm().ask(ended=self.pid)
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
    """Client of the forking process, which starts with the first request."""

    def __init__(self, **variables: str) -> None:
        # A model name that is not a folder would be looked up on a hub, which takes a minute.
        self.variables = {**os.environ, **environment(), "HF_HUB_OFFLINE": "1", **variables}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, **request: Any) -> Any:
        with self._lock:
            process = self._process = self._process or self._started()
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        assert answer, "the process that forks servers ended"
        return json.loads(answer)

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            FARM, cwd=ROOT, env=self.variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip


_farm = functools.cache(_Farm)
"""Return the client with these variables; it lives as long as this process."""
_farm()  # created before several threads request it at once


def import_sglang() -> None:
    """Import every model too, as a server does for one that is not a Llama: that takes two CPU seconds.

    Models first, because the hooks index what is imported by then. Checks of kernels load none.
    """
    importlib.import_module(start.MODULES[0])
    if "TRITON_INTERPRET" not in os.environ:
        importlib.import_module("sglang.srt.models.registry").ModelRegistry.get_supported_archs()
    start.import_sglang()


def serve(prepare: Callable[[], None] = import_sglang) -> None:
    """Fork for every line of standard input, after *prepare* has done the imports."""
    prepare()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps((_ended if "ended" in request else _forked)(**request)), flush=True)


def _ended(ended: int, wait: bool = False) -> int | None:
    pid, status = os.waitpid(ended, 0 if wait else os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None


def _forked(command: list[str], variables: dict[str, str], log: str, before: str | None = None) -> int:
    farm = os.getpid()
    if pid := os.fork():
        return pid
    code = 1
    try:
        _become(variables, log, farm)
        if before is not None:
            _launch(command, before)
        elif command[1:3] == MODULE:
            sys.argv = command[2:]
            start.main()
        else:
            os.execve(command[0], command, variables)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _launch(argv: list[str], before: str) -> None:
    signal.alarm(SECONDS_ALLOWED)  # a launch that was not refused must not hang the tests
    exec(before, {})
    sys.argv = argv
    module, _, function = argv[0].partition(":")
    if function:
        getattr(importlib.import_module(module), function)()
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def _become(variables: dict[str, str], log: str, farm: int) -> None:
    """Take the session, files and environment of a new process; exit if *farm*, its parent, has ended."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != farm:  # it ended before the line above, so no signal will come
        os._exit(1)
    for path, mode, numbers in ((os.devnull, os.O_RDONLY, (0,)), (log, os.O_WRONLY | os.O_APPEND, (1, 2))):
        file = os.open(path, mode)
        for number in numbers:
            os.dup2(file, number)
        os.close(file)
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    # Writing a variable moves it, and setproctitle looks for the old ones behind the command line.
    os.environ.update({name: value for name, value in variables.items() if os.environ.get(name) != value})
    sys.path[1:1] = [part for part in variables["PYTHONPATH"].split(os.pathsep) if part and part not in sys.path]
    tempfile.tempdir = None  # the imports may have set it


if __name__ == "__main__":
    serve()
    os._exit(0)  # skips the orderly teardown of SGLang's modules, which takes seconds
