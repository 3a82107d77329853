"""A test run leaves no process behind, however it ends."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.cheap_servers import inner_run
from tests.engine.workload import DEADLINE, wait_until

ROOT = Path(__file__).parents[3]
MARK = "SGLANG_ADAPTIVE_TESTED_RUN"
TESTS = '''
import subprocess, sys, time
from pathlib import Path

HERE = Path(__file__).parent
# Its parent ends at once, it has a session of its own, and it ignores what can be ignored.
ESCAPES = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if not os.fork():
    os.setsid()
    open(sys.argv[1], "w").close()
    signal.pause()
"""

def test_starts_what_escapes(one, two):
    subprocess.run([sys.executable, "-c", ESCAPES, HERE / "escaped"], check=True)

def test_hangs(three):
    subprocess.Popen(["sleep", "1000"])
    if not (HERE / "ends").exists():
        (HERE / "hangs").touch()
        while True:  # a signal just before a pause would not end it
            time.sleep(1)
'''


def _hear_of_hang_ups() -> None:
    """Undo what `nohup` does to everything that it starts, including these tests and their runs."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Run:
    """A run that starts servers and other processes, and then hangs unless it should end by itself."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._folder, self._mark = folder, uuid.uuid4().hex
        variables = {name: value for name, value in os.environ.items() if name != "MAKELEVEL"} | {MARK: self._mark}
        self.first = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, preexec_fn=_hear_of_hang_ups,
        )  # fmt: skip

    def processes(self) -> list[psutil.Process]:
        """Return every process with this run's mark in its environment."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark:
                    found.append(process)
        return found

    def until_it_hangs(self) -> None:
        """Wait until all its processes exist."""
        wait_until(lambda: all((self._folder / name).exists() for name in ("escaped", "hangs")), "the run hangs")
        assert len(self.processes()) >= 6  # itself, its supervisor, its tests, a server, what escaped, what sleeps

    def ended(self) -> int:
        """Wait for the first process; return its exit code."""
        return self.first.wait(DEADLINE)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs = []

    def started(*around: str, joined: str | None = None, workers: int = 0) -> Run:
        """Start a run with the command *around*, then the run's words, or one word of *joined* and them."""
        command = inner_run(tmp_path, TESTS, "-n", str(workers))
        runs.append(Run([*around, *(command if joined is None else [joined + shlex.join(command)])], tmp_path))
        return runs[-1]

    yield started
    for run in runs:
        for process in run.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        run.first.wait()


Start = Callable[..., Run]
CODES = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGINT: 2}


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGTERM, 2), (signal.SIGHUP, 0), (signal.SIGINT, 0)])
def test_a_run_that_is_told_to_end_ends_with_all_that_it_started(
    start: Start, number: signal.Signals, workers: int
) -> None:
    run = start(workers=workers)
    run.until_it_hangs()
    run.first.send_signal(number)
    assert run.ended() == CODES[number]
    assert run.processes() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_whose_first_process_is_killed_leaves_nothing(start: Start, workers: int) -> None:
    run = start(workers=workers)
    run.until_it_hangs()
    run.first.kill()
    wait_until(lambda: run.processes() == [], "everything has ended")


def test_a_whole_group_that_is_killed_leaves_nothing(start: Start) -> None:
    """Like timeout --signal KILL."""
    run = start()
    run.until_it_hangs()
    os.killpg(run.first.pid, signal.SIGKILL)
    wait_until(lambda: run.processes() == [], "everything has ended")


def test_make_that_is_killed_leaves_nothing(start: Start, tmp_path: Path) -> None:
    """Make is the first process of `make test`."""
    (tmp_path / "Makefile").write_text("test:\n\t$(COMMAND)\n")
    run = start("make", "-f", str(tmp_path / "Makefile"), "test", joined="COMMAND=")
    run.until_it_hangs()
    run.first.kill()
    wait_until(lambda: run.processes() == [], "everything has ended")


def test_a_run_whose_terminal_is_closed_goes_on_under_nohup(start: Start) -> None:
    run = start("nohup")
    run.until_it_hangs()
    run.first.send_signal(signal.SIGHUP)
    run.first.send_signal(signal.SIGTERM)
    assert run.ended() == CODES[signal.SIGTERM]
    assert run.processes() == []


def test_a_run_that_is_over_leaves_nothing(start: Start, tmp_path: Path) -> None:
    (tmp_path / "ends").touch()
    run = start()
    assert run.ended() == 0
    assert run.processes() == []
