"""The audit inside a server: a sound one is found sound, each planted fault is proved, and what runs at zero steps."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.serve_cpu import environment
from sglang_adaptive.sglang_plugin.audit.finished import VERDICTS
from tests.engine import planted, servers
from tests.engine.servers import TIERS
from tests.engine.workload import Case, adaptive, rotating_depth, wait_until

pytestmark = pytest.mark.engine
WITHIN = 24
"""Requests after which a fault has to be proved, at most."""
CONFIG = {"throughput": {"candidate_steps": list(TIERS)}, "warm_up": False, "audit": {"share": 1.0, "when": "idle"}}
KINDS = ({}, {"frequency_penalty": 1.5}, {"repetition_penalty": 1.3}, {"min_new_tokens": 16, "ignore_eos": False})


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CpuServer, Path]]:
    """A server that audits every request, with the plugin of faults, and the file that names one."""
    folder = tmp_path_factory.mktemp("audited")
    plugin, order = planted.write_plugin(folder / "plugin"), folder / "order"
    path = os.pathsep.join([environment()["PYTHONPATH"], str(Path(__file__).parents[2]), str(plugin)])
    speculation = servers._speculation("--speculative-adaptive-config", servers._config(folder, "audited", CONFIG))
    with servers._server(
        folder, "audited", *speculation, "--enable-metrics", PYTHONPATH=path, **{planted.ORDER: str(order)}
    ) as server:
        yield server, order


def audit(server: CpuServer) -> dict[str, Any]:
    found: dict[str, Any] = adaptive(server)["audit"]
    return found


def verdicts(server: CpuServer) -> int:
    """Return how many requests have come to a verdict."""
    return sum(audit(server)[verdict] for verdict in VERDICTS)


def cases(prompts: list[str], kinds: tuple[dict[str, Any], ...] = KINDS) -> Iterator[Case]:
    """Yield requests without end, prompt after prompt in kind after kind."""
    for prompt, kind in itertools.cycle(itertools.product(prompts, kinds)):
        yield Case(prompt, sampling={"ignore_eos": True, **kind})


def reconfigure(server: CpuServer, config: dict[str, Any]) -> None:
    server.post("/set_internal_state", {"server_args": {"adaptive_config": config}})


@pytest.mark.parametrize("fault", [planted.ACCEPTED, planted.PENALTY, planted.TARGET])
def test_a_planted_fault_is_proved(fault: str, audited: tuple[CpuServer, Path], easy: list[str]) -> None:
    server, order = audited
    reconfigure(server, CONFIG)
    before = audit(server)
    order.write_text(fault)
    for asked, case in enumerate(itertools.islice(cases(easy[:3]), WITHIN), 1):
        done = verdicts(server)
        with rotating_depth(server):
            case.whole(server, rid=f"{fault}, request {asked}")
        wait_until(lambda done=done: verdicts(server) > done, "it comes to a verdict")  # type: ignore[misc]
        if audit(server)["wrong"] > before["wrong"]:
            break
    order.write_text("")
    state, found = adaptive(server), audit(server)
    print(fault, asked, found)
    assert found["wrong"] == before["wrong"] + 1, f"{fault}: not seen in {asked} requests"
    proved = found["proved"]
    assert proved["request"] == f"{fault}, request {asked}" and proved["token"] > 0
    assert (state["degraded"], state["degraded_steps"]) == (True, 0)
    why = f"the audit has found a wrong token, token {proved['token']} of request {proved['request']}: "
    assert state["degraded_reason"].startswith(why)
    assert f"adaptive speculation degraded to 0 steps: {why}" in server.log_path.read_text()
