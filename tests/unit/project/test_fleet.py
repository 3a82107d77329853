"""Servers that tests share: which of them run, what becomes of those that fail, and that none outlives pytest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.fleet import ATTEMPTS, SERVER_BYTES, Fleet, NoServerError
from tests.engine.workload import DEADLINE, wait_until

NAMES = ["one", "two", "three", "four"]
READY = "echo 'The server is fired up and ready to roll!'; exec sleep 1000"


class Servers:
    """A fleet of servers that cost nothing: shells that print the ready message and sleep."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made, self.scripts = folder, list[tuple[str, CpuServer]](), dict[str, str]()
        self.memory = 100 * SERVER_BYTES
        """What is available without the servers; each takes all that a start requires."""
        self.fleet = Fleet({name: lambda name=name: self._make(name) for name in NAMES}, available=self._available)

    def _make(self, name: str) -> CpuServer:
        server = CpuServer(["--model-path", "none"], log=self._folder / f"{name}-{len(self._made)}.log")
        server.command = ["/bin/sh", "-c", self.scripts.get(name, READY)]
        self._made.append((name, server))
        return server

    def _available(self) -> int:
        return self.memory - len(self.running()) * SERVER_BYTES

    def running(self) -> list[str]:
        return sorted(name for name, server in self._made if server.is_running())

    def starts(self) -> Counter[str]:
        return Counter(name for name, _ in self._made)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    made = Servers(tmp_path)
    yield made
    made.fleet.close()
    assert made.running() == []


def test_the_servers_of_a_turn_and_the_next_ones_run_and_no_others(servers: Servers) -> None:
    servers.fleet.turn(["one"], [["two"], ["one", "three"], ["four"]])
    assert servers.fleet.take("one").is_running()
    wait_until(lambda: servers.running() == ["one", "three", "two"], "those of the next tests run")
    servers.fleet.turn(["four"], [["one"]])
    assert servers.fleet.take("four").is_running() and servers.fleet.take("two").is_running(), "needed unsaid"
    assert servers.running() == ["four", "one", "two"]
    assert servers.starts() == {"one": 1, "two": 2, "three": 1, "four": 1}


@pytest.mark.parametrize(
    ("script", "memory", "told", "starts"),
    [
        (READY, SERVER_BYTES - 1, r"not ready after 0\.3 s, 3\.0 GB free", 0),
        ("exec sleep 1000", 9 * SERVER_BYTES, r"not ready after 0\.3 s", ATTEMPTS),
        ("echo a line of its log; exit 3", 9 * SERVER_BYTES, "ended with code 3:\na line of its log", ATTEMPTS),
    ],
    ids=["no memory", "it hangs", "it ends"],
)
def test_who_waits_in_vain_is_told_why(servers: Servers, script: str, memory: int, told: str, starts: int) -> None:
    servers.fleet._wait_seconds = 300.0 if "exit" in script else 0.3
    servers.scripts["one"], servers.memory = script, memory
    for _ in range(ATTEMPTS + 1):
        servers.fleet.turn(["one"], [])
        with pytest.raises(NoServerError, match=f"one does not come up: .*{told}"):
            servers.fleet.take("one")
    assert servers.starts()["one"] == starts


def test_a_server_that_died_and_one_that_was_discarded_are_replaced(servers: Servers) -> None:
    servers.fleet.turn(["one", "two"], [])
    first = servers.fleet.take("one")
    os.kill(first.pid or 0, signal.SIGKILL)
    wait_until(lambda: not first.is_running(), "the server is dead")
    second = servers.fleet.take("one")
    assert second is not first and second.is_running()
    servers.fleet.discard()
    servers.fleet.turn(["one", "two"], [])
    third = servers.fleet.take("one")
    assert third is not second and third.is_running() and not second.is_running()
    assert servers.fleet.take("two").is_running()
    assert servers.starts() == {"one": 3, "two": 1}, "what a test has not taken goes on"


ROOT = Path(__file__).parents[3]
STARTS = """
import signal, sys
from pathlib import Path
from tests import forked_servers

# The server is another program, and needs nothing of SGLang.
forked_servers.FARM[1:] = ["-c", "from tests import forked_servers; forked_servers.serve(lambda: None)"]
server = forked_servers.ForkedServer(["--model-path", "none"], log=Path(sys.argv[1]))
server.command = ["/bin/sleep", "1000"]
server.launch()
print(server.pid, flush=True)
signal.pause()
"""


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTS, str(tmp_path / "log")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        server = psutil.Process(int(starter.stdout.readline()))
        assert server.is_running()
        starter.kill()
    gone, _ = psutil.wait_procs([server], timeout=DEADLINE)
    assert gone
