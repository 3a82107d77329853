"""Servers that cost nothing (a shell that prints the ready message and sleeps), and pytest runs that share them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.fleet import SERVER_BYTES

NAMES = ["one", "two", "three", "four", "five"]
READY = "echo 'The server is fired up and ready to roll!'; exec sleep 1000"
PLENTY = 100 * SERVER_BYTES
"""More memory than any test needs."""


class Cheap(CpuServer):
    """A server, as far as a fleet can tell."""

    def __init__(self, folder: Path, script: str = READY) -> None:
        super().__init__(["--model-path", "none"], log=folder / "log")
        self.command = ["/bin/sh", "-c", script]


class Makers(dict[str, Callable[[], Cheap]]):
    """Make a server for any of NAMES, with the script of its name if there is one; keep the servers made."""

    def __init__(self, folder: Path, **scripts: str) -> None:
        self.made: list[tuple[str, Cheap]] = []

        def maker(name: str) -> Callable[[], Cheap]:
            def make() -> Cheap:
                own = folder / f"{name}-{len(self.made)}"
                own.mkdir()
                server = Cheap(own, scripts.get(name, READY))
                self.made.append((name, server))
                return server

            return make

        super().__init__({name: maker(name) for name in NAMES})

    def running(self) -> list[str]:
        return sorted(name for name, server in self.made if server.is_running())

    def starts(self) -> Counter[str]:
        return Counter(name for name, _ in self.made)


_CONFTEST = """
import pytest
from tests.cheap_servers import NAMES, PLENTY, Makers
from tests.engine.fleet import Fleet, turns
from tests.supervisor import pytest_cmdline_main

turn = turns(lambda item: [name for name in NAMES if name in item.fixturenames])

def pytest_collection_modifyitems(items):
    if BACKWARDS:
        items.reverse()

@pytest.fixture(scope="session")
def fleet(tmp_path_factory):
    makers = Makers(tmp_path_factory.mktemp("servers"))
    fleet = Fleet(makers, available=lambda: PLENTY)
    yield fleet
    fleet.close()
    assert makers.running() == []

def server(name):
    @pytest.fixture(name=name)
    def taken(fleet): return fleet.take(name)
    return taken

one, two, three, four, five = map(server, NAMES)
"""


def inner_run(folder: Path, tests: str, *options: str, backwards: bool = False) -> list[str]:
    """Write *tests*, which have a fixture for each of NAMES, into *folder*; return the command that runs them.

    Run the command in the root of the repository.
    """
    (folder / "conftest.py").write_text(_CONFTEST.replace("BACKWARDS", str(backwards)))
    (folder / "test_inner.py").write_text(tests)
    # Importing Hypothesis takes a second, at the latest at the end of each run.
    without = [word for name in ("cacheprovider", "hypothesispytest", "benchmark") for word in ("-p", f"no:{name}")]
    return [sys.executable, "-m", "pytest", *without, f"--rootdir={folder}", *options, str(folder)]
