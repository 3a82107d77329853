"""Rounds that verify fewer drafts than they make: chosen, held, timed, counted and reported."""

from __future__ import annotations

import random

import pytest

from sglang_adaptive.policy.base import RoundPrices
from sglang_adaptive.policy.observation import BudgetEvidence, RoundObservation
from sglang_adaptive.runtime.budgets import BINS, LEAST, MOST, UNITS, Calibration, budget_report
from sglang_adaptive.runtime.counters import Counters, RoundMix
from sglang_adaptive.runtime.round_note import RoundNote
from sglang_adaptive.runtime.round_times import RoundClock, RoundTimes
from sglang_adaptive.runtime.speedup import at_fixed_depths
from tests.unit.runtime.test_controller import AdaptiveController, ScriptedPolicy, Ticks, Worker, serving

EVIDENCE = BudgetEvidence(3, 5, {1: 3}, {1: 2})
ROUND = RoundObservation(3, [1, 0, 2], 3, 0.02, budget=1, verified=[1, 0, 2], completed=[3, 0, 2], evidence=EVIDENCE)
"""Only one draft of the first request and none of the second were verified."""


class Chooser(ScriptedPolicy):
    """A scripted policy that also names a budget."""

    def __init__(self) -> None:
        super().__init__([0, 1, 3, 7], 7)
        self.budget: int | None = 3
        self.allowed = False

    def allow_budgets(self, allowed: bool) -> None:
        self.allowed = allowed


def choosing() -> tuple[AdaptiveController, Chooser, Ticks]:
    ticks, policy = Ticks(), Chooser()
    controller = AdaptiveController(Worker(3), policy, clock=RoundClock(ticks))
    controller.init_states()
    return controller, policy, ticks


def packed() -> RoundNote:
    """Return the note on ROUND."""
    return RoundNote(3, budget=1, verified=[1, 0, 2], completed=[3, 0, 2])


def test_the_policy_s_budget_is_that_of_the_coming_round() -> None:
    controller, policy, _ = choosing()
    assert controller.choice.budget is None
    controller.activate_step_by_batch(3)
    assert (controller.worker.speculative_num_steps, controller.choice.budget) == (7, 3)
    policy.budget = None
    controller.activate_step_by_batch(3)
    assert controller.choice.budget is None
    policy.budget, policy.fails_on = 1, "choose"
    controller.activate_step_by_batch(3)
    assert controller.choice.budget is None, "the policy was set aside"


def test_a_policy_that_knows_no_budgets_verifies_all() -> None:
    controller, *_ = serving()
    controller.allow_budgets()
    controller.activate_step_by_batch(3)
    assert controller.choice.budget is None


def test_policies_are_told_that_budgets_are_allowed() -> None:
    controller, policy, _ = choosing()
    assert not policy.allowed
    controller.allow_budgets()
    later = Chooser()
    controller.replace_policy(later, by="a test")
    assert (policy.allowed, later.allowed) == (True, True)
    controller.allow_budgets(False)
    assert not later.allowed


def test_a_held_budget_goes_with_held_steps() -> None:
    controller, policy, _ = choosing()
    with pytest.raises(ValueError, match="the same number"):
        controller.force_budget(1)
    controller.allow_budgets()
    with pytest.raises(ValueError, match="at least 1"):
        controller.force_budget(0)
    controller.force_steps(7)
    controller.force_budget(1)
    controller.activate_step_by_batch(3)
    assert (controller.worker.speculative_num_steps, controller.choice.budget) == (7, 1)
    controller.force_steps(3)
    controller.activate_step_by_batch(3)
    assert controller.choice.budget is None, "other steps are held with all drafts verified"
    controller.force_steps(None)
    controller.activate_step_by_batch(3)
    assert controller.choice.budget == policy.budget


def test_what_the_device_says_reaches_the_policy() -> None:
    controller, policy, _ = choosing()
    looked, trials = packed(), [0] * (BINS - 1) + [4]
    looked.evidence = EVIDENCE
    looked.trials, looked.believed, looked.accepted = trials, [0] * (BINS - 1) + [3600], trials
    controller.on_verify_complete([1, 0, 2], 3, looked)
    (seen,) = policy.seen
    assert (seen.budget, seen.verified, seen.completed) == (1, [1, 0, 2], [3, 0, 2])
    assert seen.evidence is EVIDENCE and controller.calibration.trials[-1] == 4
    controller.on_verify_complete([1, 0, 2], 3, packed())
    assert policy.seen[-1].evidence is None and controller.calibration.trials[-1] == 4
    controller.on_verify_complete([1, 0, 2], 3, RoundNote(3))
    assert policy.seen[-1].budget is None


def test_rounds_of_another_budget_are_not_alike() -> None:
    ticks = Ticks()
    clock, read = RoundClock(ticks), []
    for budget in (None, None, 2, 2, 1, None):
        ticks.now += 0.01
        read.append(clock.read(3, 8, budget))
    assert read == [None, pytest.approx(0.01), None, pytest.approx(0.01), None, None]


def test_round_times_are_kept_by_budget() -> None:
    times = RoundTimes()
    for budget, seconds in ((None, 0.03), (1, 0.02), (2, 0.025)):
        times.add(RoundObservation(3, [0] * 4, 4, seconds, budget=budget))
    assert [(cell.get("budget"), cell["seconds"]) for cell in times.as_list()] == [(1, 0.02), (2, 0.025), (None, 0.03)]


def test_an_absent_draft_is_neither_proposed_nor_rejected() -> None:
    counters = Counters()
    counters.add_round(ROUND)
    assert counters.drafted() == {3: 3} and counters.accepted() == {3: 3} and counters.tokens() == {3: 6}
    assert [(at["reached"], at["accepted"]) for at in counters.by_position()] == [(2, 2), (1, 1)]
    assert counters.rounds == {3: 1} and counters.budgets == {(3, 1): 1}
    counters.add_round(RoundObservation(3, [3, 0, 2], 3))
    assert counters.drafted() == {3: 12} and counters.accepted() == {3: 8}
    assert [(at["reached"], at["accepted"]) for at in counters.by_position()] == [(5, 4), (3, 3), (2, 1)]
    assert counters.verified_per_request() == 12 / 6
    counters.add_round(RoundObservation(0, [0, 0, 0], 3))
    assert counters.verified_per_request() == 12 / 6, "rounds that draft"


def test_a_fixed_depth_is_held_against_the_text_and_not_against_what_was_kept() -> None:
    prices = RoundPrices({1: 0.015, 3: 0.03}, {1: 0.01, 3: 0.01}, (1.0, 1.5, 1.8, 2.0), {}, {(3, 1): 0.02})
    mix = RoundMix(3, 3, True, 1)
    mix.add(ROUND)
    assert mix.tokens == 6 and mix.tokens_at(3, prices.tokens) == 8 and mix.tokens_at(1, prices.tokens) == 5
    fixed = {one.steps: one.seconds for one in at_fixed_depths(mix, prices)}
    assert fixed[3] == pytest.approx(0.02 * (0.03 / 0.02) * 6 / 8)
    assert not list(at_fixed_depths(RoundMix(3, 3, True, 2), prices)), "no time for such rounds is known"


def test_the_warm_up_runs_every_budget_at_the_deepest_steps() -> None:
    controller, _, _ = choosing()
    controller.allow_budgets()
    controller.begin_warm_up()
    ran = []
    for _ in range(6):
        controller.activate_step_by_batch(4)
        ran.append((controller.worker.speculative_num_steps, controller.choice.budget))
    assert ran == [(0, None), (1, None), (3, None), (7, None), (7, 1), (7, 3)]
    assert list(controller.startup.warmed_batch_sizes) == [] and controller._startup()["warmed_batch_sizes"] == [4]
    controller.end_warm_up()
    assert controller.choice.budget is None


@pytest.mark.parametrize("exponent", [0.7, 1.0, 1.6])
def test_the_exponent_is_what_makes_chances_right(exponent: float) -> None:
    calibration, draw = Calibration(), random.Random(1)
    for _ in range(300):
        trials, believed, accepted = [0] * BINS, [0] * BINS, [0] * BINS
        for _ in range(100):
            chance = draw.random()
            at = min(int(chance * BINS), BINS - 1)
            trials[at] += 1
            believed[at] += round(UNITS * chance)
            accepted[at] += draw.random() < chance**exponent
        calibration.add(trials, believed, accepted)
    # One exponent for all bins but the last, fitted to their sum.
    assert calibration.exponent == pytest.approx(exponent, abs=0.06)
    report = budget_report(None, Counters(), calibration)["calibration"]
    assert [(one["from"], one["to"]) for one in report] == [(at / BINS, (at + 1) / BINS) for at in range(BINS)]
    for one in report:
        assert one["believed"] == pytest.approx((one["from"] + one["to"]) / 2, abs=0.01)
        assert one["accepted"] == pytest.approx(((one["from"] + one["to"]) / 2) ** exponent, abs=0.03)


def test_the_exponent_has_bounds_and_forgets() -> None:
    calibration = Calibration()
    assert calibration.exponent == 1.0
    for hits, bound in ((0, MOST), (1000, LEAST)):
        for _ in range(400):
            calibration.add([1000, *[0] * (BINS - 1)], [500_000, *[0] * (BINS - 1)], [hits, *[0] * (BINS - 1)])
        assert calibration.exponent == pytest.approx(bound, abs=0.001)


def test_the_report_of_a_server_that_has_run_none() -> None:
    report = budget_report(2, Counters(), Calibration())
    assert (report["budget"], report["rounds"], report["verified_per_request"]) == (2, [], None)
    assert all(one["trials"] == 0 and one["believed"] is None is one["accepted"] for one in report["calibration"])
