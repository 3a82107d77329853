"""A new configuration by request while the server runs; `test_http_workers.py` sends SIGHUP and watches the file."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sglang_adaptive.client import Client, RequestError
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.servers import TIERS, rank_rounds, require_alike
from tests.engine.workload import Case, adaptive, kept, meanwhile, run

SHALLOW = {"1": {"candidate_steps": [1]}}
DEEP = {"1": {"candidate_steps": [7]}}
THROUGHPUT = {"throughput": {"candidate_steps": [0, 1, 3, 7], "sync_rounds": 16}}
CHANGES = 10
"""Changes during which requests run; requests continue until this many happened."""


@contextmanager
def changing(server: Client, configs: list[dict[str, Any]]) -> Iterator[list[int]]:
    """Apply each of *configs* in turn, some rounds apart, until the block ends."""
    turn, applied = itertools.cycle(configs), [0]

    def change() -> None:
        server.configure(next(turn))
        applied[0] += 1
        time.sleep(0.05)

    with meanwhile(change):
        yield applied


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
        lines = ema.log_path.read_text().splitlines()
        line = [line for line in lines if "adaptive: configuration changed by" in line][-1]
        assert f"changed by {found['config_changed']['by']}: " in line
        assert f"1.candidate_steps: {before['1']['candidate_steps']} -> [1]" in line and "-> none" in line

        assert ema.configure(THROUGHPUT) == [True]
        Case(easy[0], max_new_tokens=64).whole(ema)
        found = adaptive(ema)
        assert found["policy"] == "throughput" and found["config"]["throughput"]["sync_rounds"] == 16
        assert found["why"]["words"] and not found["degraded"]
        learnt = found["acceptance"][0]["trials"]
        assert ema.configure({"throughput": {"candidate_steps": [1, 3]}}) == [True]
        assert adaptive(ema)["acceptance"][0]["trials"] >= learnt  # rounds pending then are counted now
        assert {rate["steps"] for rate in adaptive(ema)["rates"]} == {1, 3}
    assert adaptive(ema)["config"] == before


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


@pytest.mark.parametrize(
    "body",
    [
        {"server_args": {"force_steps": 3}},
        *({"server_args": {"pp_max_micro_batch_size": value}} for value in (-1, 8)),
        *({"server_args": value} for value in ({}, "adaptive_force_steps", {"adaptive_force_steps": float("nan")})),
        *([3], {"adaptive_force_steps": 3}),
    ],
    ids=str,
)
def test_other_requests_are_answered_as_stock_sglang_does(ema: CpuServer, plain: CpuServer, body: Any) -> None:
    answers = []
    for server in (ema, plain):
        try:
            answers.append(server.post("/set_internal_state", body))
        except RequestError as error:
            answers.append(str(error))
    assert answers[0] == answers[1]
    assert adaptive(ema)["forced_steps"] is None
