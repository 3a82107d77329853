"""The EMA policy: routing of batch sizes to slots, a slot's transitions, and its snapshot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.config import check_config
from sglang_adaptive.policy.ema import AdaptiveSpeculativeParams, AdaptiveStepSlot
from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.policy.observation import RoundObservation

THREE_SLOTS = {
    "4": {"candidate_steps": [2]},
    "8": {"candidate_steps": [3]},
    "32": {"candidate_steps": [5]},
}


def policy(graphs: list[int] | None = None) -> AdaptiveSpeculativeParams:
    built = AdaptiveSpeculativeParams(3, config=check_config(THREE_SLOTS, "test"))
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
    for late in (RoundObservation(3, [3] * 8, 8), RoundObservation(3, [3, 3], 2)):  # the second of the tier before
        tested.observe(late)
        assert (tested.get_steps_for_batch(8), tested.get_steps_for_batch(2)) == (3, 1)
    tested.observe(RoundObservation(1, [1, 1], 2))
    assert tested.get_steps_for_batch(2) == 3
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
        AdaptiveSpeculativeParams(3, config=check_config({}, "f.json"))


AT_ONCE = {"warmup_batches": 0, "update_interval": 1, "ema_alpha": 1.0, "down_hysteresis": 0.0}


def slot(ladder: list[int], steps: int, **tuning: Any) -> AdaptiveStepSlot:
    """Return a slot at *steps* that decides after every round, from that round alone."""
    return AdaptiveStepSlot(steps, {"candidate_steps": ladder, **AT_ONCE, **tuning})


def after(mean: float, ladder: list[int], steps: int, **tuning: Any) -> int:
    """Return the steps after one round in which requests accept *mean* drafts on average (in quarters)."""
    tested = slot(ladder, steps, **tuning)
    quarters = round(mean * 4)
    counts = [quarters // 4 + (request < quarters % 4) for request in range(4)]
    changed = tested.update(counts)
    assert changed == (tested.current_steps != steps)
    return tested.current_steps


@pytest.mark.parametrize(
    ("mean", "expected"),
    [(0.0, 1), (0.5, 1), (0.75, 3), (2.5, 3), (2.75, 7), (3.0, 7)],
)  # fmt: skip
def test_thresholds_lie_half_a_step_below_a_tier(mean: float, expected: int) -> None:
    assert after(mean, [1, 3, 7], 3) == expected


@pytest.mark.parametrize(
    ("mean", "hysteresis", "expected"),
    [(2.5, 0.0, 3), (2.5, -0.25, 7), (2.25, -0.25, 3), (2.75, 0.25, 3), (3.0, 0.25, 7), (0.5, 0.0, 1)],
)  # fmt: skip
def test_down_hysteresis_moves_the_threshold_of_a_drop(mean: float, hysteresis: float, expected: int) -> None:
    assert after(mean, [1, 3, 7], 7, down_hysteresis=hysteresis) == expected


@pytest.mark.parametrize(
    ("mean", "hysteresis", "expected"),
    [(2.75, 0.0, 7), (2.75, 0.25, 3), (3.0, 0.25, 7), (2.5, -0.25, 7), (2.25, -0.25, 3)],
)  # fmt: skip
def test_up_hysteresis_moves_the_threshold_of_a_rise(mean: float, hysteresis: float, expected: int) -> None:
    assert after(mean, [1, 3, 7], 3, up_hysteresis=hysteresis) == expected


def test_one_decision_may_cross_several_tiers_both_ways() -> None:
    assert after(0.0, [1, 2, 3, 5, 7], 7) == 1
    assert after(1.0, [1, 2, 3, 5, 7], 1) == 2
    assert after(3.0, [1, 2, 3, 5, 7], 1) == 5


def test_a_drop_is_not_followed_by_a_rise_in_the_same_decision() -> None:
    # At 2.0 the drop 3 -> 2 passes (2 - 0.5 + 1) and so would the rise 2 -> 3 (2 - 0.5).
    assert after(2.0, [1, 2, 3], 3, down_hysteresis=1.0) == 2


@pytest.mark.parametrize(
    ("mean", "coeff", "expected"),
    [(3.0, 0.0, 7), (3.0, 1.0, 3), (3.0, 2.0, 5), (3.0, 2.5, 7), (3.25, 1.5, 5), (3.0, 0.25, 1)],
)  # fmt: skip
def test_ceiling_caps_a_slot_that_stays(mean: float, coeff: float, expected: int) -> None:
    """Ceilings: off, 3, 6, 8, 5, 1."""
    assert after(mean, [1, 3, 5, 7], 7, ceiling_coeff=coeff, down_hysteresis=-4.0) == expected


def test_ceiling_never_stops_a_rise() -> None:
    assert after(3.0, [1, 3, 7], 3, ceiling_coeff=0.5) == 7


def test_ceiling_is_at_least_one_step() -> None:
    assert after(0.0, [1, 3], 3, ceiling_coeff=0.5, down_hysteresis=-8.0) == 1
    assert after(0.0, [0, 1, 3], 1, ceiling_coeff=0.5, down_hysteresis=-8.0) == 1


@pytest.mark.parametrize(
    ("mean", "hysteresis", "expected"),
    [(0.5, 0.0, 0), (0.75, 0.0, 1), (0.25, -0.25, 0), (0.5, -0.25, 1)],
)  # fmt: skip
def test_zero_steps_is_reached_below_half_a_draft(mean: float, hysteresis: float, expected: int) -> None:
    assert after(mean, [0, 1], 1, down_hysteresis=hysteresis) == expected


def test_zero_steps_tries_the_next_tier_at_every_decision() -> None:
    tested = slot([0, 2, 3], 0, update_interval=3)
    assert tested.ema_accept_len == -1.0
    assert [tested.update([0, 0]) for _ in range(3)] == [False, False, True]
    assert (tested.current_steps, tested.ema_accept_len) == (2, 1.0)  # neutral start of the probe


def test_zero_steps_keeps_the_average_that_led_there() -> None:
    tested = slot([0, 1], 1)
    assert tested.update([0, 0, 0, 1]) and tested.current_steps == 0
    assert tested.update([0]) and tested.current_steps == 1
    assert tested.ema_accept_len == 0.25


def test_a_slot_of_zero_steps_alone_never_moves() -> None:
    tested = slot([0], 5)
    assert not any(tested.update([0]) for _ in range(20))
    assert tested.current_steps == 0


def test_warm_up_then_every_interval() -> None:
    tested = slot([1, 7], 7, warmup_batches=4, update_interval=3)
    moved = []
    for number in range(1, 14):
        top = tested.current_steps == 7
        if tested.update([0 if top else 7]):
            moved.append(number)
    assert moved == [7, 10, 13]


def test_average_starts_one_below_the_steps_and_forgets_by_alpha() -> None:
    tested = slot([1, 3], 3, ema_alpha=0.25, warmup_batches=100)
    assert tested.ema_accept_len == 2.0
    tested.update([3, 3])
    assert tested.ema_accept_len == 0.75 * 2.0 + 0.25 * 3.0


@pytest.mark.parametrize(("initial", "expected"), [(3, 3), (2, 3), (99, 3), (7, 7)])
def test_unknown_initial_steps_start_in_the_middle(initial: int, expected: int) -> None:
    assert slot([7, 1, 3, 3], initial).current_steps == expected


def test_no_candidates_is_an_error() -> None:
    with pytest.raises(ValueError, match="candidate_steps"):
        AdaptiveStepSlot(3, {"candidate_steps": []})


def test_a_round_without_requests_teaches_nothing() -> None:
    tested = slot([1, 3], 3)
    assert not tested.update([])
    assert (tested.batches, tested.ema_accept_len) == (0, 2.0)


def test_a_round_drafted_by_another_depth_is_counted_and_left_out() -> None:
    tested = slot([0, 1, 7], 7)
    assert tested.observe(RoundObservation(7, [0, 0], 2)) and tested.current_steps == 0
    assert tested.observe(RoundObservation(0, [0, 0], 2)) and tested.current_steps == 1
    before = (tested.ema_accept_len, tested.batches)
    assert not tested.observe(RoundObservation(7, [7, 7], 2))  # late: drafted before the switch
    assert not tested.observe(RoundObservation(0, [0, 0], 2))
    assert (tested.ema_accept_len, tested.batches) == before
    assert tested.stale_rounds == 2
    assert tested.observe(RoundObservation(1, [1, 0, 1, 1], 4)) and tested.current_steps == 7
    assert (tested.ema_accept_len, tested.batches) == (0.75, before[1] + 1)


@pytest.mark.parametrize(
    ("ladder", "steps", "expected"),
    [
        ([1, 3, 7], 1, (None, 0.75)),
        ([1, 3, 7], 3, (0.25, 2.75)),
        ([1, 3, 7], 7, (2.25, None)),
        ([0, 1, 3], 1, (0.25, 0.75)),
        ([0, 1, 3], 0, (None, None)),
    ],
)
def test_thresholds_are_those_that_decide(
    ladder: list[int], steps: int, expected: tuple[float | None, float | None]
) -> None:
    tuning = {"down_hysteresis": -0.25, "up_hysteresis": 0.25}
    drop_at, rise_above = slot(ladder, steps, **tuning).thresholds
    assert (drop_at, rise_above) == expected
    if drop_at is not None:
        assert after(drop_at, ladder, steps, **tuning) < steps == after(drop_at + 0.25, ladder, steps, **tuning)
    if rise_above is not None:
        assert after(rise_above, ladder, steps, **tuning) == steps < after(rise_above + 0.25, ladder, steps, **tuning)
