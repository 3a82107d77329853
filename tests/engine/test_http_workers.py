"""A server with several HTTP workers (``--tokenizer-worker-num``): each of them can do what a single one can."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from sglang_adaptive.client import Client, RequestError
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.sglang_plugin.page.routes import DATA, PAGE
from sglang_adaptive.sglang_plugin.page.routes import HISTORY_PATH as HISTORY
from tests.engine.servers import ADMIN_KEY, TIERS
from tests.engine.workload import Case, adaptive, wait_until

TITLE = "sglang::tokenizer_worker"
WORKERS = 2
EMA = {"1": {"candidate_steps": list(TIERS)}}
SHALLOW = {"1": {"candidate_steps": [1]}}


@pytest.fixture
def admin(workers: CpuServer) -> Client:
    return Client.from_url(workers.url, admin_api_key=ADMIN_KEY)


def pids(server: CpuServer) -> list[int]:
    """Return the process ids of the server's HTTP workers; the first may be ready before the last has its title."""
    assert server.pid is not None
    parent = psutil.Process(server.pid)

    def found() -> list[int] | None:
        titled = []
        for child in parent.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # a short-lived process
                if "".join(child.cmdline()).startswith(TITLE):
                    titled.append(child.pid)
        return sorted(titled) if len(titled) == WORKERS else None

    return wait_until(found, f"{WORKERS} HTTP workers have their titles")  # type: ignore[no-any-return]


@pytest.fixture(params=range(WORKERS))
def alone(workers: CpuServer, request: pytest.FixtureRequest) -> Iterator[None]:
    """Let one of the server's HTTP workers take every new connection."""
    others = pids(workers)
    del others[request.param]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    yield
    for pid in others:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.usefixtures("alone")
def test_each_holds_and_releases_the_depth(workers: CpuServer, admin: Client, easy: list[str]) -> None:
    for steps in (0, TIERS[-1]):
        assert admin.force_steps(steps) == [True]
        Case(easy[0], max_new_tokens=8).whole(workers)
        assert adaptive(workers)["forced_steps"] == adaptive(workers)["current_steps"] == steps
    assert admin.force_steps(None) == [True]
    assert adaptive(workers)["forced_steps"] is None
    with pytest.raises(RequestError, match=r"400 .*adaptive_force_steps: got 2; expected one of 0, 1, 3, 7"):
        admin.force_steps(2)
    admin.force_steps(1, seconds=0.2)
    wait_until(lambda: adaptive(workers)["forced_steps"] is None, "a hold without renewal ends")


@pytest.mark.usefixtures("alone")
def test_each_changes_the_configuration(workers: CpuServer, admin: Client) -> None:
    assert admin.configure(SHALLOW) == [True]
    assert adaptive(workers)["config"]["1"]["candidate_steps"] == [1]
    with pytest.raises(RequestError, match=r"400 .*adaptive_config: 1.candidate_steps: needs 5, which was not"):
        admin.configure({"1": {"candidate_steps": [5]}})
    assert admin.configure(EMA) == [True]


@pytest.mark.usefixtures("alone")
def test_each_shows_the_page_to_those_who_have_the_key(workers: CpuServer, admin: Client) -> None:
    administrator = Client.from_url(workers.url, api_key=ADMIN_KEY)
    assert "<title>" in administrator.get(PAGE)
    assert administrator.get(DATA)["ranks"] == [adaptive(workers)]
    assert administrator.get(HISTORY)["ranks"][0]["history"]["steps"] == list(TIERS)
    for ask in (
        lambda: workers.get(PAGE),
        lambda: workers.get(DATA),
        lambda: workers.force_steps(1),
        lambda: workers.configure(EMA),
    ):
        with pytest.raises(RequestError, match="401 "):
            ask()


@pytest.mark.usefixtures("alone")
def test_each_corrects_the_rates_of_answers(workers: CpuServer, admin: Client, easy: list[str]) -> None:
    admin.force_steps(1)
    meta = Case(easy[0], max_new_tokens=16).whole(workers)["meta_info"]
    admin.force_steps(None)
    assert meta["spec_num_proposed_drafts"] == meta["spec_verify_ct"]  # one per round, not the launch depth's
    assert meta["spec_accept_rate"] == meta["spec_num_correct_drafts"] / meta["spec_num_proposed_drafts"]


def test_one_of_them_warms_up_before_any_is_ready(workers: CpuServer) -> None:
    lines = workers.log_path.read_text().splitlines()
    warmed = [index for index, line in enumerate(lines) if "adaptive: warmed up depths" in line]
    ready = [index for index, line in enumerate(lines) if "The server is fired up and ready to roll!" in line]
    assert len(warmed) == 1 and ready and warmed[0] < ready[0]
    assert adaptive(workers)["startup"]["warm_up_seconds"] > 0


def test_file_is_read_again_on_hangup_and_when_watched(workers: CpuServer, admin: Client) -> None:
    file = Path(workers.command[workers.command.index("--speculative-adaptive-config") + 1])
    original, before = file.read_text(), pids(workers)
    assert workers.pid is not None

    def by_whom() -> str:
        changed: dict[str, Any] | None = adaptive(workers)["config_changed"]
        return "" if changed is None else changed["by"]

    def told(by: str) -> int:
        return workers.log_path.read_text().count(f"adaptive: configuration changed by {by}: ")

    try:
        file.write_text(json.dumps({**SHALLOW, "watch": True}))
        os.kill(workers.pid, signal.SIGHUP)
        wait_until(lambda: by_whom() == "SIGHUP", "one worker read the file on SIGHUP")
        assert adaptive(workers)["config"]["1"]["candidate_steps"] == [1]
        for times, config in enumerate(({"1": {"candidate_steps": [7]}, "watch": True}, EMA), start=1):
            file.write_text(json.dumps(config))
            wait_until(lambda times=times: told("watch") >= times, "the changed file was read")
        assert (told("SIGHUP"), told("watch")) == (1, 2), "each worker looks, and one is heard"
        assert adaptive(workers)["config"]["1"]["candidate_steps"] == list(TIERS)
        assert pids(workers) == before, "nobody was restarted"
    finally:
        file.write_text(original)
        admin.configure(EMA)
