"""The servers and prompts of the engine tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests import checks
from tests.engine.fleet import Fleet, turns
from tests.engine.servers import SERVERS
from tests.engine.workload import Case, Expected, Output, run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run engine tests that share no server first, then group the others by server, so that each starts about once.

    Tests that start their own servers are among the first and have the memory to themselves: shared servers start only
    when a test asks for one.
    """
    here = [index for index, item in enumerate(items) if _is_here(item)]
    waiting = sorted((items[index] for index in here), key=_last_server)
    for index, item in zip(here, waiting, strict=True):
        items[index] = item


def _is_here(item: pytest.Item) -> bool:
    return Path(__file__).parent in item.path.parents


def _last_server(item: pytest.Item) -> int:
    """Return the position of the last of a test's servers in the start order; 0 without one."""
    return max((1 + list(SERVERS).index(name) for name in _servers_of(item)), default=0)


def _servers_of(item: pytest.Item) -> list[str]:
    """Return the servers that a test uses, by fixture or as a fixture's parameter."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = {*getattr(item, "fixturenames", ()), *(value for value in parameters if isinstance(value, str))}
    return [name for name in SERVERS if name in named]


turn = turns(lambda item: _servers_of(item) if _is_here(item) else [])


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The servers; each start has its own folder."""
    fleet = Fleet({name: lambda name=name: SERVERS[name](tmp_path_factory.mktemp(name)) for name in SERVERS})
    yield fleet
    fleet.close()


def _fixture(name: str) -> Callable[[Fleet], CpuServer]:
    @pytest.fixture(name=name)
    def server(fleet: Fleet) -> CpuServer:
        return fleet.take(name)

    server.__doc__ = SERVERS[name].__doc__
    return server


for _name in SERVERS:
    globals()[_name] = _fixture(_name)


@pytest.fixture
def server(request: pytest.FixtureRequest, name: str) -> CpuServer:
    """Return the server of a test's parameter *name*."""
    found: CpuServer = request.getfixturevalue(name)
    return found


@pytest.fixture(scope="session")
def _known() -> dict[str, Output]:
    """Outputs without speculation, by case: each is sent once."""
    return {}


@pytest.fixture
def expected(plain: CpuServer, _known: dict[str, Output]) -> Expected:
    """Return the outputs of cases without speculation."""

    def of(cases: list[Case]) -> list[Output]:
        missing = {repr(case): case for case in cases if repr(case) not in _known}
        _known.update(zip(missing, run(plain, list(missing.values()), at_once=8), strict=True))
        return [_known[repr(case)] for case in cases]

    return of


@pytest.fixture(scope="session")
def easy() -> list[str]:
    """Prompts that the draft continues well."""
    return list(models.prompts("easy"))


@pytest.fixture(scope="session")
def hard() -> list[str]:
    """Prompts that the draft continues badly."""
    return list(models.prompts("hard"))


@pytest.fixture
def cases(easy: list[str], hard: list[str]) -> list[Case]:
    """Requests with prompts of both kinds, and ways to end other than by length."""
    return [
        *(Case(prompt) for pair in zip(easy[:2], hard[:2], strict=True) for prompt in pair),
        Case(easy[4] * 4),  # several prefill chunks
        Case(easy[5], max_new_tokens=1),
        Case(easy[6], sampling={"stop": [" ", "e"], "min_new_tokens": 9}),
    ]


@pytest.fixture(scope="session")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Return a function that runs a module of tests.engine with a temporary folder and these arguments."""
    stepping = "tests.engine.stepping"
    return lambda module, *more: checks.findings(stepping, module, str(tmp_path_factory.mktemp(module)), *more)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, for examples that write files and profiles."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SGLANG_ADAPTIVE_PROFILE_DIR", str(tmp_path / "profiles"))
    return tmp_path
