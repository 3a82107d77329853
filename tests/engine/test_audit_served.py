"""The audit inside a server: it passes a correct server and proves an injected fault; requests have priority."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.audit.questions import SCHEMA
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.sglang_plugin.page.routes import PAGE
from sglang_adaptive.sglang_plugin.stages.audit_scheduler import VERDICTS
from tests.browser import FOUND, Browser
from tests.engine import planted, servers
from tests.engine.servers import TIERS
from tests.engine.workload import (
    Case,
    adaptive,
    grown,
    require_whole_pool,
    rotating_depth,
    rounds,
    run,
    run_together,
    wait_until,
)

TOGETHER = 4
CONFIG = {"throughput": {"candidate_steps": list(TIERS)}, "warm_up": False, "audit": {"share": 1.0, "when": "idle"}}
KINDS: tuple[dict[str, Any], ...] = (
    {"ignore_eos": True},
    {"ignore_eos": True, "frequency_penalty": 1.5},
    {"ignore_eos": True, "repetition_penalty": 1.3},
    {"min_new_tokens": 16},
)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CpuServer, Path]]:
    """A server that audits every request, with the fault plugin, and the file that selects a fault."""
    server, order = servers.with_faults(tmp_path_factory.mktemp("audited"), CONFIG, "--enable-metrics")
    with server:
        wait_until(lambda: verdicts(server) == 1, "SGLang's own first request is decoded again")
        yield server, order


def audit(server: CpuServer) -> dict[str, Any]:
    found: dict[str, Any] = adaptive(server)["audit"]
    return found


def verdicts(server: CpuServer) -> int:
    """Return how many requests have a verdict."""
    return sum(audit(server)[verdict] for verdict in VERDICTS)


def cases(prompts: Sequence[str]) -> list[Case]:
    """Return a request of each kind for each prompt."""
    return [Case(prompt, 32, kind) for prompt, kind in itertools.product(prompts, KINDS)]


def total(server: CpuServer, metric: str, labels: str = "") -> float:
    """Return the sum over a counter's series."""
    exposed = server.get("/metrics").splitlines()
    return sum(float(line.split()[-1]) for line in exposed if line.startswith(f"{metric}{{") and labels in line)


def test_a_sound_server_is_found_sound(audited: tuple[CpuServer, Path], easy: list[str], hard: list[str]) -> None:
    server, _ = audited
    before, requests = audit(server), total(server, "sglang:num_requests_total")
    asked = cases([easy[0], hard[0]])
    with rotating_depth(server):
        server.generate(easy[1], 1, temperature=1.0)
        server.generate(easy[1], 1, json_schema=json.dumps(SCHEMA))
        run_together(server, asked)  # no pause between them, in which one could be decoded again and cut off
        done = rounds(server)
    everything = sum(before[verdict] for verdict in VERDICTS) + len(asked)
    wait_until(lambda: verdicts(server) >= everything, "all but the first two are decoded again")
    found = audit(server)
    assert (found["wrong"], found["unfinished"], found["waiting"]) == (0, 0, 0), found
    assert found["equal"] + found["tie"] == everything and found["proved"] is found["reason"] is None
    assert rounds(server) == done, "rounds of the audit are not counted"
    assert total(server, "sglang:num_requests_total") == requests + len(asked) + 2

    def is_told() -> bool:
        server.generate(easy[1], 8, temperature=1.0)  # an idle server updates its metrics only every half minute
        return total(server, "sglang:adaptive_audits_total", 'verdict="equal"') == found["equal"]

    wait_until(is_told, "the metrics tell")
    require_whole_pool(server)


def test_requests_go_first(audited: tuple[CpuServer, Path], easy: list[str]) -> None:
    server, _ = audited
    before, asked = audit(server), 1
    everything = verdicts(server)
    wanted = run(server, [Case(easy[1], 32)], 1)
    while audit(server)["unfinished"] == before["unfinished"]:
        asked += 2
        run(server, [Case(easy[0], 250)], 1)
        begun = everything + asked - 1  # without the request to come; all may be done before a poll sees one running
        wait_until(
            lambda begun=begun: server.get("/v1/loads")["loads"][0]["num_running_reqs"] or verdicts(server) == begun,  # type: ignore[misc]
            "it is decoded again",
        )
        assert run(server, [Case(easy[1], 32)], 1) == wanted
        wait_until(lambda: not audit(server)["waiting"], "nothing waits")
    assert audit(server)["wrong"] == 0
    wait_until(lambda: verdicts(server) == everything + asked, "each has come to a verdict")


def test_a_planted_fault_is_proved(audited: tuple[CpuServer, Path], easy: list[str], hard: list[str]) -> None:
    server, order = audited
    before = audit(server)["wrong"]
    order.write_text(planted.ACCEPTED)
    server.force_steps(TIERS[-1])
    asked, proved, done = iter(cases([easy[1], hard[0]])), None, verdicts(server)
    while proved is None and (now := list(itertools.islice(asked, TOGETHER))):
        run_together(server, now)
        done += TOGETHER
        wait_until(lambda done=done: audit(server)["proved"] or verdicts(server) == done, "a verdict")  # type: ignore[misc]
        proved = audit(server)["proved"]
    order.write_text("")
    server.force_steps(None)
    assert proved is not None, f"not seen: {audit(server)}"
    state = adaptive(server)
    assert state["audit"]["wrong"] == before + 1 and proved["token"] > 0 and proved["request"]
    assert (state["degraded"], state["degraded_steps"]) == (True, 0)
    why = f"the audit has found a wrong token, token {proved['token']} of request {proved['request']}: "
    assert state["degraded_reason"].startswith(why)
    assert f"adaptive speculation degraded to 0 steps: {why}" in server.log_path.read_text()
    begun = state["rounds_by_tier"]
    run(server, cases([easy[0]])[:1], 1)
    assert set(grown(begun, adaptive(server)["rounds_by_tier"])) == {"0"}, "it stays at zero steps"


@pytest.mark.skipif(FOUND is None, reason="no Chromium here; Debian's package is chromium")
def test_the_page_tells_what_was_found(audited: tuple[CpuServer, Path]) -> None:
    server, _ = audited
    with Browser() as browser:
        browser.open(server.url + PAGE)
        browser.until("answer?.ranks[0].audit && byId('audit-note').textContent", "the card is filled in")
        browser.until("(paused || byId('pause').click(), paused && !asking)", "the page is paused")
        found, note = browser.value("answer.ranks[0].audit"), browser.text("audit-note")
        rows = browser.text("audit-table")
        if found["proved"] is None:
            assert note.startswith("No wrong token. 100% of finished greedy requests")
        else:
            assert note.startswith(
                f"Token {found['proved']['token']} of request {found['proved']['request']} is wrong: "
            )
            assert browser.value("answer.ranks[0].degraded_steps") == 0
        for verdict, name in (("equal", "Equal"), ("tie", "Ties"), ("wrong", "Wrong"), ("unfinished", "Not compared")):
            assert f"{name}{found[verdict]}" in rows.replace("\t", "").replace("\n", ""), rows
        assert browser.problems == []
