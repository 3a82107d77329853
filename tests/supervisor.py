"""A run of the tests ends with every process that it started, whatever ends it: TERM, HUP, Ctrl-C or kill -9.

The first process forks a supervisor, and the supervisor forks the process that runs the tests. Linux makes the
supervisor the parent of every process below it that loses its own, so a session of its own hides none. The supervisor
ends all of them when the tests are over, when it is told to, and when the first process is gone.
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
    """Let nothing that the run starts outlive it; workers of pytest-xdist are part of a run."""
    if not hasattr(config, "workerinput"):
        supervise()


def supervise() -> None:
    """Return in the process that is to run the tests; the calling one ends with its exit code.

    Call it while there is one thread. Does nothing but on Linux.
    """
    if sys.platform != "linux":
        return
    # A blocked signal would arrive even where it is ignored, as SIGHUP is under nohup.
    watched = {signal.SIGCHLD, *(number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    if "MAKELEVEL" in os.environ:  # make passes every signal on but one
        _end_with_parent(os.getppid())
    first, group = os.getpid(), os.getpgrp()
    if supervisor := os.fork():
        _pass_on(supervisor, watched)
    os.setpgid(0, 0)  # what is sent to the run's whole group, kill -9 too, is not to end the supervisor
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _end_with_parent(first)
    if tests := os.fork():
        _supervise(tests, watched)
    os.setpgid(0, group)  # that of the terminal's foreground
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _pass_on(supervisor: int, watched: set[signal.Signals]) -> NoReturn:
    """Hand every signal to *supervisor*, and end as it ends."""
    while True:
        came = signal.sigwaitinfo(watched)
        if came.si_signo == signal.SIGCHLD:
            pid, status = os.waitpid(supervisor, os.WNOHANG)
            if pid:
                os._exit(_exit_code(status))
        elif came.si_signo != signal.SIGINT or came.si_code <= 0:  # Ctrl-C on a terminal has reached the tests as well
            os.kill(supervisor, came.si_signo)


def _supervise(tests: int, watched: set[signal.Signals]) -> NoReturn:
    """Wait until *tests* has ended or a signal says so; end every process below this one."""
    code = None
    while code is None:
        came = signal.sigwaitinfo(watched)
        if came.si_signo == signal.SIGCHLD:
            code = _reaped(tests)
        elif came.si_signo == signal.SIGINT:
            os.kill(tests, signal.SIGINT)  # pytest ends the test, and tells where it was
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
    """Take note of every process that has ended; return the exit code of *tests* when it is one of them."""
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
    if os.getppid() != parent:  # it has ended already
        os.kill(os.getpid(), signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value):
        raise OSError(ctypes.get_errno(), "prctl")
