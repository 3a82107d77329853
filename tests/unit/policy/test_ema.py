"""What the EMA policy has beyond SGLang's: its snapshot and late rounds.

How it decides is compared with SGLang's own: see test_ema_matches_sglang.py.
"""

from __future__ import annotations

import json

import pytest

from sglang_adaptive.policy.choice import Coming, drafted
from sglang_adaptive.policy.config import check_config
from sglang_adaptive.policy.ema import AdaptiveSpeculativeParams
from sglang_adaptive.policy.observation import RoundObservation

THREE_SLOTS = {"4": {"candidate_steps": [2]}, "8": {"candidate_steps": [3]}, "32": {"candidate_steps": [5]}}


def policy(graphs: list[int] | None = None) -> AdaptiveSpeculativeParams:
    built = AdaptiveSpeculativeParams(3, check_config(THREE_SLOTS, "test").options)
    built.set_cuda_graph_bs(graphs)
    return built


@pytest.mark.parametrize(
    "graphs",
    [None, [1, 2], [4], [6, 20], [5, 9], [40], [1, 2, 4, 8, 16, 24, 32], [1, 8, 32, 64], [33, 34]],
)  # fmt: skip
def test_shown_ranges_are_the_batches_that_route_there(graphs: list[int] | None) -> None:
    tested = policy(graphs)
    served: dict[int, list[int]] = {}
    for batch_size in range(1, 200):
        served.setdefault(tested.choose(Coming(batch_size)).steps, []).append(batch_size)
    for slot in tested.snapshot()["slots"]:
        batches = served.get(slot["steps"])
        if batches is None:
            assert slot["batch_range"] is None
        else:
            last = None if batches[-1] == 199 else batches[-1]
            assert slot["batch_range"] == [batches[0], last]


def test_slots_learn_apart_and_show_it() -> None:
    config = {"warmup_batches": 0, "update_interval": 1, "ema_alpha": 1.0,
              "1": {"candidate_steps": [1, 3]}, "8": {"candidate_steps": [1, 3]}}  # fmt: skip
    tested = AdaptiveSpeculativeParams(3, check_config(config, "test").options)
    tested.observe(RoundObservation(drafted(3), [0, 0], 2))
    assert tested.choose(Coming(2)).steps == 1
    low, _ = tested.snapshot()["slots"]
    assert (low["drop_at"], low["rise_above"]) == (None, 0.5)
    for late in ([3] * 8, [3, 3]):  # the second was drafted before its slot's switch, and is left out
        tested.observe(RoundObservation(drafted(3), late, len(late)))
        assert (tested.choose(Coming(8)).steps, tested.choose(Coming(2)).steps) == (3, 1)
    tested.observe(RoundObservation(drafted(1), [1, 1], 2))
    assert tested.choose(Coming(2)).steps == 3
    shown = tested.snapshot()
    assert json.loads(json.dumps(shown)) == shown == {
        "policy": "ema",
        "slots": [
            {"batch_range": [1, 7], "steps": 3, "ema_accept_len": 1.0, "drop_at": 0.25,
             "rise_above": None, "batches": 2, "stale_rounds": 1, "candidate_steps": [1, 3]},
            {"batch_range": [8, None], "steps": 3, "ema_accept_len": 3.0, "drop_at": 0.25,
             "rise_above": None, "batches": 1, "stale_rounds": 0, "candidate_steps": [1, 3]},
        ],
    }  # fmt: skip
