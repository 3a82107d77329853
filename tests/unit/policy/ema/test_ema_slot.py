"""Transition tables of one EMA slot: thresholds, hysteresis, ceiling, zero steps, warm-up, stale rounds."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_adaptive.policy.ema.ema_slot import AdaptiveStepSlot
from sglang_adaptive.policy.observation import RoundObservation

AT_ONCE = {"warmup_batches": 0, "update_interval": 1, "ema_alpha": 1.0, "down_hysteresis": 0.0}


def slot(ladder: list[int], steps: int, **tuning: Any) -> AdaptiveStepSlot:
    """A slot at *steps* that decides after every round, from that round alone."""
    return AdaptiveStepSlot(steps, {"candidate_steps": ladder, **AT_ONCE, **tuning})


def after(mean: float, ladder: list[int], steps: int, **tuning: Any) -> int:
    """Steps after one round in which the requests' mean of accepted drafts is *mean* (in quarters)."""
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
