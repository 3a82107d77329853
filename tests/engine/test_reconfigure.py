"""A new configuration by request while the server runs; `test_http_workers.py` sends SIGHUP and watches the file."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sglang_adaptive.client import Client, RequestError
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.servers import TIERS, rank_rounds, require_alike
from tests.engine.workload import Case, adaptive, grown, kept, require_whole_pool, run

SHALLOW = {"1": {"candidate_steps": [1]}}
DEEP = {"1": {"candidate_steps": [7]}}
THROUGHPUT = {"throughput": {"candidate_steps": [0, 1, 3, 7], "sync_rounds": 16}}
CHANGES = 10
"""Changes during which requests run; requests continue until this many happened."""


@contextlib.contextmanager
def changing(server: Client, configs: list[dict[str, Any]]) -> Iterator[list[int]]:
    """Apply each of *configs* in turn, some rounds apart, until the block ends."""
    done, applied = threading.Event(), [0]

    def change() -> None:
        for config in itertools.cycle(configs):
            if done.is_set():
                return
            server.configure(config)
            applied[0] += 1
            done.wait(0.05)

    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(change)
        try:
            yield applied
        finally:
            done.set()
            work.result()


def audits(server: CpuServer) -> list[str]:
    return [line for line in server.log_path.read_text().splitlines() if "adaptive: configuration changed by" in line]


def test_change_takes_effect_and_is_told(ema: CpuServer, easy: list[str]) -> None:
    with kept(ema) as before:
        counted = adaptive(ema)["rounds_by_tier"].get("1", 0)
        assert ema.configure(SHALLOW) == [True]
        meta = Case(easy[0], max_new_tokens=16).whole(ema)["meta_info"]
        found = adaptive(ema)
        assert found["rounds_by_tier"]["1"] - counted == meta["spec_verify_ct"]
        assert found["config"]["1"]["candidate_steps"] == [1] and "4" not in found["config"]
        assert found["config_changed"]["by"].startswith("127.0.0.1:")
        assert len(found["slots"]) == 1 and found["tiers"] == list(TIERS)
        (line,) = audits(ema)[-1:]
        assert f"changed by {found['config_changed']['by']}: " in line
        assert f"1.candidate_steps: {before['1']['candidate_steps']} -> [1]" in line and "-> none" in line

        assert ema.configure(THROUGHPUT) == [True]
        Case(easy[0], max_new_tokens=64).whole(ema)
        found = adaptive(ema)
        assert found["policy"] == "throughput" and found["config"]["throughput"]["sync_rounds"] == 16
        assert found["why"]["words"] and not found["degraded"]
        learnt = found["acceptance"][0]
        assert ema.configure({"throughput": {"candidate_steps": [1, 3]}}) == [True]
        assert adaptive(ema)["acceptance"][0]["probability"] == pytest.approx(learnt["probability"], abs=0.05)
        assert adaptive(ema)["acceptance"][0]["trials"] >= learnt["trials"]  # rounds pending then are counted now
        assert {rate["steps"] for rate in adaptive(ema)["rates"]} == {1, 3}
        adopted = adaptive(ema)["acceptance"][0]["trials"]
        assert ema.configure({"throughput": {"candidate_steps": [1, 3], "sync_rounds": 48}}) == [True]
        assert adaptive(ema)["acceptance"][0]["trials"] == pytest.approx(adopted, rel=0.01)
    assert adaptive(ema)["config"] == before


def test_text_stays_the_same_while_the_configuration_changes_under_load(
    ema: CpuServer, easy: list[str], hard: list[str]
) -> None:
    cases = [Case(prompt) for prompt in (*easy[:3], *hard[:3])]
    ema.force_steps(0)
    without_drafts = run(ema, cases, at_once=6)
    ema.force_steps(None)
    counted = adaptive(ema)["rounds_by_tier"]

    def ran() -> set[str]:
        return set(grown(counted, adaptive(ema)["rounds_by_tier"]))

    with kept(ema), changing(ema, [SHALLOW, DEEP, THROUGHPUT]) as applied:
        while applied[0] < CHANGES or not {"1", "7"} <= ran():
            assert run(ema, cases, at_once=3) == without_drafts
    require_whole_pool(ema)
    assert not adaptive(ema)["degraded"]


def test_every_rank_changes_at_the_same_round(two_ranks: CpuServer, easy: list[str], hard: list[str]) -> None:
    cases = [Case(prompt, max_new_tokens=40) for prompt in (*easy[:2], *hard[:2])]
    two_ranks.force_steps(0)
    without_drafts = run(two_ranks, cases, at_once=3)
    two_ranks.force_steps(None)
    begun = len(rank_rounds(two_ranks, 0))
    shallow = {"1": {"candidate_steps": [1, 2]}}
    with kept(two_ranks), changing(two_ranks, [DEEP, {"throughput": {"sync_rounds": 4}}, shallow]) as applied:
        while applied[0] < CHANGES or len({line.split()[1] for line in rank_rounds(two_ranks, 0)[begun:]}) < 2:
            assert run(two_ranks, cases, at_once=3) == without_drafts
    require_alike(two_ranks)
    assert adaptive(two_ranks)["degraded"] is False and adaptive(two_ranks)["policy"] == "throughput"


OTHERS = {
    "unknown key": {"server_args": {"force_steps": 3}},
    "stock key, value out of range": {"server_args": {"pp_max_micro_batch_size": -1}},
    "stock key": {"server_args": {"pp_max_micro_batch_size": 8}},
    "nothing": {"server_args": {}},
    "not JSON": {"server_args": {"adaptive_force_steps": float("nan")}},
    "not an object": [3],
    "no server_args": {"adaptive_force_steps": 3},
    "server_args not an object": {"server_args": "adaptive_force_steps"},
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_requests_are_answered_as_stock_sglang_does(ema: CpuServer, plain: CpuServer, case: str) -> None:
    answers = []
    for server in (ema, plain):
        try:
            answers.append(server.post("/set_internal_state", OTHERS[case]))
        except RequestError as error:
            answers.append(str(error))
    assert answers[0] == answers[1]
    assert adaptive(ema)["forced_steps"] is None
