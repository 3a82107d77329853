"""POST /set_internal_state {"server_args": {"adaptive_force_steps": ...}}."""

from __future__ import annotations

import pytest

from sglang_adaptive.client import RequestError
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.servers import TIERS
from tests.engine.workload import Case, adaptive, grown, rounds, run

PATH = "/set_internal_state"


@pytest.mark.parametrize("steps", TIERS)
def test_every_round_runs_at_the_forced_depth(ema: CpuServer, easy: list[str], steps: int) -> None:
    assert ema.force_steps(steps) == [True]
    before = adaptive(ema)["rounds_by_tier"]
    meta = Case(easy[0], max_new_tokens=24).whole(ema)["meta_info"]
    assert grown(before, adaptive(ema)["rounds_by_tier"]) == {str(steps): meta["spec_verify_ct"]}
    assert adaptive(ema)["forced_steps"] == adaptive(ema)["current_steps"] == steps
    ema.force_steps(None)


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
            answers.append(server.post(PATH, OTHERS[case]))
        except RequestError as error:
            answers.append(str(error))
    assert answers[0] == answers[1]
    assert adaptive(ema)["forced_steps"] is None


def test_only_the_documented_keys_are_a_client_s(ema: CpuServer, easy: list[str]) -> None:
    lease, report = '{"steps": 3, "lease": 5}', '{"replica": 0, "epoch": 0, "request": "x", "verdict": "wrong"}'
    for name in ("adaptive_warm_up", f"adaptive_force_steps {lease}", f"adaptive_audit {report}"):
        with pytest.raises(RequestError, match=r"400 .*: unknown key; expected one of adaptive_config, "):
            ema.post(PATH, {"server_args": {name: 1}})
    counted = rounds(ema)
    run(ema, [Case(easy[0], 16)], 1)
    found = adaptive(ema)
    assert rounds(ema) > counted, "no warm-up, in which nothing is counted"
    assert (found["forced_steps"], found["degraded"]) == (None, False)
