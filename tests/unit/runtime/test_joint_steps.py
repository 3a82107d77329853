"""Two ranks that run rounds together: what each learns of round times, whose probes run, and what each reports."""

from __future__ import annotations

import random

import pytest

from sglang_adaptive.policy.choice import drafted
from sglang_adaptive.policy.observation import RoundNote
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.policy.throughput.policy import SYNC_AFTER
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.joint_steps import JointSteps
from sglang_adaptive.runtime.round_times import RoundClock
from tests.fakes import controller

DEPTHS = (0, 1, 2, 3, 5, 7)


def seconds(requests: int, steps: int, step: float = 0.0) -> float:
    """Return seconds; deep drafts are nearly free unless *step* prices them, but seem dear without a profile."""
    return 0.02 + step * steps + 1e-5 * requests * (steps + 1)


class Ranks:
    def __init__(self, requests: list[int], good: float, probe_budget: float = 0.0, step: float = 0.0) -> None:
        self.requests, self.good, self.now = requests, good, 0.0
        self._step, self._draw = step, random.Random(1)
        self._options = ThroughputOptions(DEPTHS, probe_budget=probe_budget)
        self.controllers = [self._controller() for _ in self.requests]
        self.joint = [JointSteps(each, rank) for rank, each in enumerate(self.controllers)]

    def _controller(self, clock: float = 1.0) -> AdaptiveController:
        return controller(ThroughputPolicy(3, self._options), RoundClock(lambda: clock * self.now))

    def restart(self, rank: int, clock: float) -> None:
        """Let *rank* begin anew, with a clock that is wrong by a factor."""
        self.controllers[rank] = self._controller(clock)
        self.joint[rank] = JointSteps(self.controllers[rank], rank)

    def policy(self, rank: int) -> ThroughputPolicy:
        found = self.controllers[rank].policy
        assert isinstance(found, ThroughputPolicy)
        return found

    def round(self) -> int:
        rows = [joint.row(many) for joint, many in zip(self.joint, self.requests, strict=True)]
        for joint in self.joint:
            joint.take(rows)
        for each, many in zip(self.controllers, self.requests, strict=True):
            each.choose(many)
        (steps,) = {each.states.live.steps for each in self.controllers}
        self.now += seconds(max(self.requests), steps, self._step)
        for each, joint, many in zip(self.controllers, self.joint, self.requests, strict=True):
            if many:
                counts = self._counts(steps, many)
                each.verified(counts, many, RoundNote(drafted(steps), largest_batch=joint.largest))
        return steps

    def rounds(self, count: int) -> list[int]:
        return [self.round() for _ in range(count)]

    def _counts(self, steps: int, many: int) -> list[int]:
        return [next((k for k in range(steps) if self._draw.random() > self.good), steps) for _ in range(many)]


def readings(policy: ThroughputPolicy) -> int:
    return sum(cell["rounds"] for cell in policy.snapshot()["cost_cells"])


def wanted(policy: ThroughputPolicy) -> int | None:
    return policy.outlook(24, 3).probe


def test_a_rank_that_becomes_the_largest_prices_rounds_by_what_it_learnt_as_a_small_one() -> None:
    ranks = Ranks([24, 2], 0.8)
    ranks.rounds(300)
    steps = ranks.round()
    learnt = ranks.policy(1)._times.at(24)
    assert learnt.seconds[steps] == pytest.approx(seconds(24, steps), rel=0.03)  # it started at less than half of that
    assert learnt.deviation[steps] <= 0.01  # the least


def test_rounds_after_an_interruption_or_of_another_largest_batch_are_not_timed() -> None:
    ranks = Ranks([24, 2], 0.8)
    ranks.rounds(SYNC_AFTER)
    timed = readings(ranks.policy(1))
    assert timed > 10
    for at in range(40):
        ranks.requests[0] = 23 + at % 2
        ranks.round()
    for _ in range(40):
        ranks.now += 5.0
        for each in ranks.controllers:
            each.interrupt()
        ranks.round()
    assert readings(ranks.policy(1)) - timed < 3  # of 80 rounds
    assert all(cell["seconds"] < 0.05 for cell in ranks.policy(1).snapshot()["cost_cells"])


def test_probes_of_the_largest_rank_run_on_all_and_others_make_none() -> None:
    ranks = Ranks([24, 2], 0.8, probe_budget=0.02)
    ranks.rounds(1500)
    assert ranks.policy(0).probe_totals().started > 0
    assert ranks.policy(1).probe_totals().started == 0
    causes = [each.counters.switches_by_cause for each in ranks.controllers]
    assert causes[0] == causes[1] and causes[0]["probe"] >= 2


def test_a_probe_is_paid_for_and_not_repeated_by_the_rank_that_becomes_the_largest() -> None:
    ranks = Ranks([24, 23], 0.8, probe_budget=0.005)
    ranks.rounds(400)
    first, second = ranks.policy(0)._prober, ranks.policy(1)._prober
    assert first.started and first.lost_seconds and not second.lost_seconds
    assert second._seen == first._seen
    assert second._credits[24] == pytest.approx(first._credits[24], rel=0.2)
    ranks.requests[0] = 22
    started, looked = first.started, set(first._looks)
    ranks.rounds(400)
    assert first.started == started and 0 < second.started <= len(DEPTHS) - started
    assert not looked & set(second._looks)


def test_a_probe_ends_when_its_rank_is_not_the_largest_any_more() -> None:
    ranks = Ranks([24, 2], 0.8, probe_budget=0.02)
    policy = ranks.policy(0)
    for _ in range(1500):
        ranks.round()
        if wanted(policy) is not None:
            break
    probe = wanted(policy)
    assert probe is not None
    ranks.requests[1] = 60
    ranks.round()
    assert wanted(policy) is None


def test_zero_steps_are_left_by_probes_alone_for_nothing_is_seen_of_the_draft() -> None:
    ranks = Ranks([8, 2], 0.02, 0.005, step=0.002)
    ran = ranks.rounds(400)[-100:]
    assert set(ran) == {0, 1} and ran.count(0) > 90
    ranks.good = 0.97
    ranks.rounds(1500)
    ran = ranks.rounds(20)
    assert max(ran, key=ran.count) == 7


def test_a_policy_that_fails_to_follow_changes_no_steps() -> None:
    ranks = Ranks([24, 2], 0.8)
    ranks.rounds(50)
    del ranks.policy(1)._prober
    steps = set(ranks.rounds(100))  # both ran the same, or this would raise
    assert steps - {3}
    degraded = [each.snapshot()["degraded_reason"] for each in ranks.controllers]
    assert degraded[0] is None and "_prober" in (degraded[1] or "")


@pytest.mark.parametrize("clock", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_starts_anew_runs_what_the_others_run(rank: int, clock: float) -> None:
    ranks = Ranks([24, 2, 0], 0.9, probe_budget=0.005)
    ranks.rounds(100)
    ranks.restart(rank, clock)
    ran = ranks.rounds(400)  # all ran the same, or this would raise
    assert max(ran[-100:], key=ran.count) == 7 and not any(each.snapshot()["degraded"] for each in ranks.controllers)


@pytest.mark.parametrize("failed", [False, True])
def test_no_rank_runs_deeper_than_another_has_room_for(failed: bool) -> None:
    ranks = Ranks([24, 2, 0], 0.95)
    ranks.rounds(200)
    assert ranks.round() == 7
    for each, most in zip(ranks.controllers, (None, 4, 0), strict=True):
        each.most_steps = most  # that of a rank without requests does not count
    if failed:
        ranks.controllers[1]._degraded = "a test"
    assert ranks.round() == 3
    ranks.controllers[1].most_steps = -1
    assert ranks.round() == 0
    ranks.controllers[1].most_steps = None
    assert ranks.round() == 7, "what ranks agree on is not what they had room for"


def test_a_warm_up_and_a_hold_of_one_rank_run_on_all() -> None:
    ranks = Ranks([24, 2], 0.8)
    ranks.rounds(50)
    ranks.controllers[0].warm_up.begin()
    assert len(set(ranks.rounds(12))) > 2  # all ran the same, or this would raise
    ranks.controllers[0].end_warm_up()
    for each in ranks.controllers:  # they hear of a hold one after the other
        each.force_steps(7)
        steps = ranks.round()
    assert steps == ranks.round() == 7


def test_a_state_says_what_runs_and_why() -> None:
    ranks = Ranks([24, 2], 0.8)
    ranks.rounds(200)
    steps = ranks.round()
    for rank in (0, 1):
        told = ranks.policy(rank).snapshot()
        assert (told["batch_size"], told["steps"]) == (24, steps)
        assert told["why"]["code"] in ("best", "vote")
    small: AdaptiveController = ranks.controllers[1]
    small.policy._acceptance.set_level(0.02)  # type: ignore[attr-defined]
    why = ranks.policy(1).snapshot()["why"]
    assert why["code"] == "vote" and "agreed" in why["words"] and why["rival_steps"] < steps
