"""``python -m sglang_adaptive.lab.cpu_engine.start ...`` is ``python -m sglang.launch_server ...``, started faster.

A server has three processes or more. SGLang starts each as a new Python that imports everything again: most of a small
server's start time and most of its memory. Here the first process imports SGLang and immediately forks the nursery.
Processes that SGLang starts with ``spawn`` are forked from the nursery, with SGLang's modules imported and without the
first process's other state.

Python's fork server (`multiprocessing.forkserver`) does this, with two changes: it is a fork instead of a new program,
and it behaves as SGLang expects. Children get the current environment, and a signal to their parent reaches the first
process.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import os
import runpy
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing import context, forkserver, util
from multiprocessing.popen_forkserver import Popen
from multiprocessing.process import BaseProcess
from typing import Any

from sglang_adaptive.sglang_plugin import hooks

MODULES = (
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.speculative.eagle_worker_v2",
)


def import_sglang() -> None:
    """Import what a server imports and all hooked modules, and index them for the hooks.

    Forks share both. Otherwise each would spend a third of a second, and memory for every module it scans.
    """
    for name in MODULES:
        importlib.import_module(name)
    hooks.problems()  # looks up every hook; the launcher reports the problems
    hooks.place_at_once().share()


def main() -> None:
    """Run SGLang's server in this process."""
    import_sglang()
    if sys.platform == "linux":
        try:
            open_nursery(MODULES)
        except OSError as error:
            print(f"sglang-adaptive: every process imports SGLang for itself: {error}", file=sys.stderr)
    sys.argv[0] = "sglang.launch_server"
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


PR_SET_PDEATHSIG = 1


def open_nursery(modules: Iterable[str]) -> None:
    """Import *modules*, and make every later ``spawn`` of this process and its children a fork of its current state.

    Call it while the process has one thread. Linux only. Raises OSError when no process or socket can be created.
    """
    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # so that a child's garbage collection does not write to shared memory
    with socket.socket(socket.AF_UNIX) as listener:
        # A folder for each process id, with a short name: a socket's path may have at most 107 characters.
        address = f"/proc/self/fd/{os.open(util.get_temp_dir(), os.O_DIRECTORY)}/nursery"
        listener.bind(address)
        listener.listen()
        alive_r, alive_w = os.pipe()
        first = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.close(alive_w)
            _serve(listener.detach(), alive_r, first)
    os.close(alive_r)
    server = forkserver._forkserver
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, alive_w, pid
    spawn = context._concrete_contexts["spawn"] = _Context()
    if "uvicorn._subprocess" in sys.modules:  # it stored the context on import, for HTTP workers
        sys.modules["uvicorn._subprocess"].spawn = spawn  # type: ignore[attr-defined]


def _serve(listener: int, alive: int, first: int) -> None:
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # SGLang's children do the same
        # SGLang's children signal a failure to their parent with this; pass it to the first process.
        signal.signal(signal.SIGQUIT, lambda *_: os.kill(first, signal.SIGQUIT))
        # Children start their own children here too; only the first process could check whether this one runs.
        context._concrete_contexts["spawn"] = _Context()
        forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]
        forkserver.main(listener, alive, [])
    except SystemExit:
        code = 0  # no process that could request a child is left
    finally:
        os._exit(code)


@dataclass(frozen=True)
class _InEnvironment:
    """A child's function: runs *target* in the environment that its starter had at that time."""

    target: Callable[..., object]
    environment: Mapping[str, str]

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        for name in os.environ.keys() - self.environment.keys():
            del os.environ[name]
        # Rewriting a variable moves it, and setproctitle looks for the old ones after the command line.
        os.environ.update({name: at for name, at in self.environment.items() if os.environ.get(name) != at})
        try:
            return self.target(*args, **kwargs)
        finally:
            atexit._run_exitfuncs()  # a new program would run them at its end; a fork server's children do not


class _Process(BaseProcess):
    """Only its static method is used; the process object is multiprocessing's own."""

    _start_method = "spawn"

    @staticmethod
    def _Popen(process: Any) -> Popen:
        process._target = _InEnvironment(process._target, dict(os.environ))
        return Popen(process)


class _Context(context.ForkServerContext):
    _name = "spawn"
    Process = _Process


if __name__ == "__main__":
    # Under the module's own name children find its classes; __main__ will be sglang.launch_server.
    importlib.import_module(__spec__.name).main()
