"""Scores and targets."""

from __future__ import annotations

import numpy as np
import pytest

from sglang_adaptive.lab.simulate import report, score
from sglang_adaptive.lab.simulate.cost import RoundCost, load_cost
from sglang_adaptive.lab.simulate.scenes import SUITES
from sglang_adaptive.lab.simulate.score import Scores, TraceScore
from sglang_adaptive.lab.simulate.trace import Population, Scene, Trace

COST: RoundCost = load_cost(None)[1]


def trace_of(p: list[float], rounds: int, changes: tuple[int, ...] = ()) -> Trace:
    """Return a batch of len(p) requests that stay for the whole trace, each with its own acceptance."""
    requests = np.full((rounds, 64), -1)
    requests[:, : len(p)] = np.arange(len(p))
    who = Population(requests, np.full(rounds, len(p)), np.zeros(rounds, dtype=np.int64))
    scene = Scene(COST, who, np.array(p), np.ones(len(p)), changes, COST, per_request=True)
    return scene.build(np.random.default_rng(0))


def test_share_is_the_time_of_the_oracle_for_the_same_tokens() -> None:
    trace = trace_of([0.2], 10)
    depths = np.array([7] * 5 + [int(trace.oracle_depths[0])] * 5)
    efficiency = trace.rates[0, 7] / trace.rates[0, depths[9]]
    slow, best = trace.seconds[0, 7], trace.seconds[0, depths[9]]
    assert score.share(trace, depths) == pytest.approx((slow * efficiency + best) / (slow + best))
    assert score.curve(trace, depths, 5).tolist() == pytest.approx([efficiency, 1.0])
    assert len(score.curve(trace, depths, 4)) == 3


def test_the_worst_window_against_zero_steps_finds_the_bad_stretch() -> None:
    trace = trace_of([0.0], 1000)
    depths = np.zeros(1000, dtype=int)
    assert score.worst_window_against_zero(trace, depths) == pytest.approx(1.0)
    depths[300:400] = 7
    slow = trace.seconds[0, 7] / trace.seconds[0, 0]
    assert score.worst_window_against_zero(trace, depths) == pytest.approx(500 / (400 + 100 * slow))


def test_switches_leave_the_warm_up_out_and_count_a_probe_twice() -> None:
    depths = np.array([3] * 50 + [5] * 251)
    assert score.switches_per_200(depths, 0) == pytest.approx(200 / 300)
    assert score.switches_per_200(depths, 100) == 0.0
    depths[200:202] = 7
    assert score.switches_per_200(depths, 100) == pytest.approx(2.0)


def test_recovery_counts_rounds_from_the_change() -> None:
    trace = trace_of([0.9] * 8, 200, (50,))
    depths = np.array(trace.oracle_depths)
    assert score.recovery_rounds(trace, depths, 50, 200) == 0
    depths[50:67] = 0
    assert score.recovery_rounds(trace, depths, 50, 200) == 17
    depths[50:] = 0
    assert score.recovery_rounds(trace, depths, 50, 200) == 150


def scores_of(**figures: float) -> Scores:
    values = {**dict.fromkeys(("share", "drawn_share", "plain_ratio", "zero_window"), 1.0), "switches": 0.0, **figures}
    return {report.JUDGED: [TraceScore(**values, curve=(0.5, 1.0), recoveries=(3, 31))]}


def test_targets_are_missed_on_the_wrong_side_of_their_bound() -> None:
    results = {"stationary": scores_of(share=0.975, switches=1.5), "step-change": scores_of(zero_window=0.98)}
    assert {(one["suite"], one["figure"]): one["met"] for one in report.outcomes(results)} == {
        ("stationary", "share of oracle, mean"): False,
        ("stationary", "share of oracle, worst trace"): True,
        ("step-change", "rounds until within 5%, slowest"): False,
        ("*", "against zero steps, worst 500 rounds"): False,
    }


def test_suites_that_did_not_run_have_no_outcome() -> None:
    assert report.outcomes({}) == []
    assert {suite for suite, _, _ in report.TARGETS} <= {*SUITES, "*"}
