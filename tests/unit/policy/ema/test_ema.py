"""Routing of batch sizes to slots, and what the EMA policy shows of itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.config.config import AdaptiveConfig, check_config
from sglang_adaptive.policy.ema.ema import AdaptiveSpeculativeParams
from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.policy.observation import RoundObservation

THREE_SLOTS = {
    "4": {"candidate_steps": [2]},
    "8": {"candidate_steps": [3]},
    "32": {"candidate_steps": [5]},
}


def policy(graphs: list[int] | None = None) -> AdaptiveSpeculativeParams:
    built = AdaptiveSpeculativeParams.from_config(3, check_config(THREE_SLOTS, "test"))
    built.set_cuda_graph_bs(graphs)
    return built


def test_is_an_adaptive_policy() -> None:
    assert isinstance(policy(), AdaptivePolicy)
    assert policy().candidate_steps == [2, 3, 5]


@pytest.mark.parametrize(
    ("batch_size", "steps"),
    [(0, 2), (1, 2), (4, 2), (7, 2), (8, 3), (31, 3), (32, 5), (4000, 5)],
)  # fmt: skip
def test_slots_are_lower_bounds_and_the_first_takes_what_lies_below(batch_size: int, steps: int) -> None:
    assert policy().get_steps_for_batch(batch_size) == steps


@pytest.mark.parametrize(
    ("batch_size", "steps"),
    [(1, 2), (4, 2), (5, 3), (8, 3), (9, 3), (16, 3), (17, 5), (40, 5), (41, 5)],
)  # fmt: skip
def test_batches_are_padded_to_their_graph_before_routing(batch_size: int, steps: int) -> None:
    assert policy([40, 1, 2, 4, 8, 16]).get_steps_for_batch(batch_size) == steps


def test_beyond_the_largest_graph_nothing_is_padded() -> None:
    assert policy([1, 2]).get_steps_for_batch(7) == 2
    assert policy([1, 2]).get_steps_for_batch(8) == 3


def test_graph_sizes_of_a_step() -> None:
    assert policy().cuda_graph_bs_for_step(3) is None
    assert policy([]).cuda_graph_bs_for_step(3) is None
    graphs = policy([40, 1, 2, 4, 8, 16])
    assert graphs.cuda_graph_bs_for_step(2) == [1, 2, 4]
    assert graphs.cuda_graph_bs_for_step(3) == [8, 16]
    assert graphs.cuda_graph_bs_for_step(5) == [40]
    assert graphs.cuda_graph_bs_for_step(7) == []


@pytest.mark.parametrize(
    "graphs",
    [None, [1, 2], [4], [6, 20], [5, 9], [40], [1, 2, 4, 8, 16, 24, 32], [1, 8, 32, 64], [33, 34]],
)  # fmt: skip
def test_shown_ranges_are_the_batches_that_route_there(graphs: list[int] | None) -> None:
    tested = policy(graphs)
    served: dict[int, list[int]] = {}
    for batch_size in range(1, 200):
        served.setdefault(tested.get_steps_for_batch(batch_size), []).append(batch_size)
    for slot in tested.snapshot()["slots"]:
        batches = served.get(slot["steps"])
        if batches is None:
            assert slot["batch_range"] is None
        else:
            last = None if batches[-1] == 199 else batches[-1]
            assert slot["batch_range"] == [batches[0], last]


def test_slots_learn_apart_and_show_it(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    config = {"warmup_batches": 0, "update_interval": 1, "ema_alpha": 1.0,
              "1": {"candidate_steps": [1, 3]}, "8": {"candidate_steps": [1, 3]}}  # fmt: skip
    path.write_text(json.dumps(config))
    tested = AdaptiveSpeculativeParams(3, path)
    assert tested.on_verify_complete([0, 0], batch_size=2) == 1
    assert tested.observe(RoundObservation(3, [3] * 8, 8)) is None
    assert tested.observe(RoundObservation(3, [3, 3], 2)) is None  # late, of the tier before
    assert tested.observe(RoundObservation(1, [1, 1], 2)) == 3
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


def test_a_configuration_of_another_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"f\.json: policy"):
        AdaptiveSpeculativeParams.from_config(3, AdaptiveConfig("throughput", (), "f.json"))
