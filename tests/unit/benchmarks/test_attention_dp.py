"""Two ranks: results from their logs and rates, and how their servers start."""

from __future__ import annotations

import pytest

from benchmarks.attention_dp import ratios
from benchmarks.harness import round_log


def test_ranks_that_ran_the_same_steps_are_identical() -> None:
    found = round_log.compare([[(8, 3), (8, 0), (0, 0)], [(1, 3), (0, 0), (4, 0), (4, 1)]])
    assert (found["identical"], found["rounds"], found["switches"]) == (True, 3, 1)
    assert found["rounds_by_depth"] == {"0": 2, "3": 1}
    assert (found["rounds_with_an_idle_rank"], found["rounds_with_four_times_the_requests"]) == (2, 1)
    assert found["largest_batch"] == 8


def test_ranks_that_differ_are_told_with_the_round() -> None:
    found = round_log.compare([[(8, 3), (8, 0)], [(1, 3), (1, 1)]])
    assert not found["identical"]
    assert found["first_unlike"] == {"round": 1, "ranks": [[8, 0], [1, 1]]}
    assert not round_log.compare([[(1, 3)] * 9, [(1, 3)]])["identical"]  # one of them has stopped
    assert not round_log.compare([[], []])["identical"]


def test_the_policy_is_compared_with_the_best_held_steps() -> None:
    turns = [
        {"passes": {name: {"rate": rate} for name, rate in rates.items()}}
        for rates in (
            {"static-0": 100.0, "static-3": 200.0, "policy": 194.0},
            {"static-0": 110.0, "static-3": 190.0, "policy": 196.0},
            {"none": 130.0},
        )
    ]
    found = ratios({"a": turns})["a"]
    assert found["best"] == "static-3"
    assert found["policy_over_best"] == pytest.approx(1.0)
    assert found["policy_over_none"] == pytest.approx(1.5)
    assert found["spread"] == pytest.approx((10 / 105 + 10 / 195 + 2 / 195) / 3)
    assert found["best_held"] == ["static-3", "static-0"]
