"""POST /set_internal_state {"server_args": {"adaptive_force_steps": ...}}."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sglang_adaptive.client import Client, RequestError
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.servers import ADMIN_KEY, TIERS
from tests.engine.workload import Case, adaptive, grown

PATH = "/set_internal_state"


@pytest.mark.parametrize("steps", TIERS)
def test_every_round_runs_at_the_forced_depth(ema: CpuServer, easy: list[str], steps: int) -> None:
    assert ema.force_steps(steps) == [True]
    before = adaptive(ema)["rounds_by_tier"]
    meta = Case(easy[0], max_new_tokens=24).whole(ema)["meta_info"]
    assert grown(before, adaptive(ema)["rounds_by_tier"]) == {str(steps): meta["spec_verify_ct"]}
    assert adaptive(ema)["forced_steps"] == adaptive(ema)["current_steps"] == steps
    ema.force_steps(None)


def test_release_gives_the_depth_back_to_the_policy(ema: CpuServer, easy: list[str]) -> None:
    policy_depth = adaptive(ema)["slots"][0]["steps"]
    ema.force_steps(next(tier for tier in TIERS if tier != policy_depth))
    Case(easy[0], max_new_tokens=2).whole(ema)
    assert ema.force_steps(None) == [True]
    Case(easy[0], max_new_tokens=2).whole(ema)
    found = adaptive(ema)
    assert found["forced_steps"] is None
    assert found["recent_switches"][-1]["cause"] == "released"
    assert found["recent_switches"][-1]["to_steps"] == policy_depth


REFUSED = [2, 8, -1, 10**6, 1.0, 0.5, True, False, "3", "null", "", [3], [], {"steps": 3}]


@pytest.mark.parametrize("value", REFUSED, ids=json.dumps)
def test_refused_value(ema: CpuServer, value: Any) -> None:
    with pytest.raises(RequestError) as refusal:
        ema.force_steps(value)
    status, _, body = str(refusal.value).removeprefix(f"POST {PATH}: ").partition(" ")
    assert status == "400"
    shown = json.dumps(value)
    told = f"adaptive_force_steps: got {shown}; expected one of 0, 1, 3, 7, or null to release"
    assert json.loads(body) == {"error": {"message": told}}
    assert adaptive(ema)["forced_steps"] is None


OTHERS = {
    "unknown key": {"server_args": {"adaptive_force_stepz": 3}},
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
            answers.append(server.post(PATH, OTHERS[case]))
        except RequestError as error:
            answers.append(str(error))
    assert answers[0] == answers[1]
    assert adaptive(ema)["forced_steps"] is None


def test_unknown_key_beside_ours_refuses_both(ema: CpuServer) -> None:
    assert ema.post(PATH, {"server_args": {"adaptive_force_steps": 3, "nonsense": 1}}) == [False]
    assert adaptive(ema)["forced_steps"] is None


def test_key_is_checked_before_the_value(tree: CpuServer) -> None:
    for stranger in (tree, Client.from_url(tree.url, api_key="wrong")):
        with pytest.raises(RequestError, match=r"401 .*Unauthorized") as refusal:
            stranger.force_steps(1)
        assert "adaptive" not in str(refusal.value)


def test_inactive_server_says_why(tree: CpuServer) -> None:
    administrator = Client.from_url(tree.url, api_key=ADMIN_KEY)
    for value in (1, None, "3"):
        with pytest.raises(RequestError, match=r"400 .*adaptive speculation is off: speculative_eagle_topk=4"):
            administrator.force_steps(value)
