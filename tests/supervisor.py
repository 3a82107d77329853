"""Ends every process that a test run started, no matter how the run ends: TERM, HUP, Ctrl-C or kill -9.

The first process forks a supervisor, which forks the process that runs the tests. Linux reparents every orphan below
the supervisor to it, so a new session cannot hide a process. The supervisor ends all of them when the tests are over,
when it gets a signal, or when the first process is gone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

import psutil
import pytest

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let nothing that the run starts outlive it; pytest-xdist workers are part of a run."""
    if not hasattr(config, "workerinput"):
        supervise()


def supervise() -> None:
    """Return in the process that runs the tests; the calling process ends with its exit code.

    Call it while there is one thread. Does nothing except on Linux.
    """
    if sys.platform != "linux":
        return
    # A blocked signal would arrive even if ignored, such as SIGHUP under nohup.
    watched = {signal.SIGCHLD, *(number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    if "MAKELEVEL" in os.environ:  # make passes on every signal but one
        _end_with_parent(os.getppid())
    first, group = os.getpid(), os.getpgrp()
    if supervisor := os.fork():
        _pass_on(supervisor, watched)
    os.setpgid(0, 0)  # signals to the run's whole group, including kill -9, must not end the supervisor
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _end_with_parent(first)
    if tests := os.fork():
        _supervise(tests, watched)
    os.setpgid(0, group)  # the terminal's foreground group
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _pass_on(supervisor: int, watched: set[signal.Signals]) -> NoReturn:
    """Forward every signal to *supervisor*, and end as it ends."""
    while True:
        came = signal.sigwaitinfo(watched)
        if came.si_signo == signal.SIGCHLD:
            pid, status = os.waitpid(supervisor, os.WNOHANG)
            if pid:
                os._exit(_exit_code(status))
        elif came.si_signo != signal.SIGINT or came.si_code <= 0:  # Ctrl-C on a terminal has already reached the tests
            os.kill(supervisor, came.si_signo)


def _supervise(tests: int, watched: set[signal.Signals]) -> NoReturn:
    """Wait until *tests* ends or a signal arrives, then end every process below this one."""
    code = None
    while code is None:
        came = signal.sigwaitinfo(watched)
        if came.si_signo == signal.SIGCHLD:
            code = _reaped(tests)
        elif came.si_signo == signal.SIGINT:
            os.kill(tests, signal.SIGINT)  # pytest ends the test and reports where it was
        else:
            code = 128 + came.si_signo
    with suppress(ChildProcessError):
        while True:
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            os.wait()
    os._exit(code)


def _reaped(tests: int) -> int | None:
    """Reap every process that has ended; return the exit code of *tests* if it is one of them."""
    code = None
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == tests:
                code = _exit_code(found[1])
    return code


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _end_with_parent(parent: int) -> None:
    """Have Linux send this process a SIGTERM when *parent* ends."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has already ended
        os.kill(os.getpid(), signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value):
        raise OSError(ctypes.get_errno(), "prctl")
