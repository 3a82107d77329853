"""The controller's rules: when it may switch, which depth it credits, and how it fails."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import pytest

from sglang_adaptive.policy.choice import drafted
from sglang_adaptive.policy.observation import RoundNote, RoundObservation
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.policy.throughput.lookups import KINDS
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.states import Progress
from tests import fakes
from tests.fakes import Learner, ScriptedPolicy, Sized, Worker, serving


def test_start_up_builds_each_missing_depth_once_with_its_own_graph_sizes_and_the_deepest_first() -> None:
    controller, worker, policy, _ = serving()
    assert policy._graph_sizes == [1, 2, 4, 8]
    assert worker.built == [(7, 8, [8]), (1, 2, [1, 2, 4, 8]), (0, 1, [1, 2, 4, 8])]
    assert controller.states.tiers == (0, 1, 3, 7)
    assert worker.speculative_num_steps == 3
    tiers = controller.snapshot()["startup"]["tiers"]
    every = [1, 2, 4, 8]  # also at the launch depth, whatever the policy returns
    assert [(tier["steps"], tier["graph_batch_sizes"]) for tier in tiers] == [
        (0, every),
        (1, every),
        (3, every),
        (7, [8]),
    ]
    assert [tier["gigabytes"] for tier in tiers] == [1.0, 1.0, None, 1.0]
    assert [tier["seconds"] is None for tier in tiers] == [False, False, True, False]


def test_launch_depth_without_a_state_is_refused_at_start_up() -> None:
    controller = AdaptiveController(Worker(5), ScriptedPolicy([0, 1], 1))
    with pytest.raises(ValueError, match="launch depth, 5 steps"):
        controller.build_states()


def test_progress_says_what_is_being_done_until_its_end() -> None:
    lines: list[str] = []
    said = threading.Event()

    def say(line: str) -> None:
        lines.append(line)
        said.set()

    with Progress(say, seconds=0.001) as progress:
        for what in ("7 steps", "5 steps"):
            progress.now(what)
            while not lines or not lines[-1].startswith(what):
                assert said.wait(60)
                said.clear()
    assert not progress._thread.is_alive()
    assert lines[-1].endswith(" s")


def test_late_result_is_credited_to_the_depth_that_drafted_it() -> None:
    controller, _, policy, _ = serving(answer=3)
    controller.choose(2)
    policy.answer = 0
    controller.choose(2)  # live depth is 0 now; the 3-step round's result is still to come
    controller.verified([2, 3], 2, RoundNote(drafted(3), requests="ab"))
    assert policy.seen[-1] == RoundNote(drafted(3), [2, 3], 2, requests="ab")
    controller.verified([0, 0], 2, RoundNote(drafted(0)))
    shown = controller.snapshot()
    assert shown["rounds_by_tier"] == {"3": 1, "0": 1}
    assert shown["drafted_by_tier"] == {"3": 6, "0": 0}
    assert shown["accepted_by_tier"] == {"3": 5, "0": 0}
    controller.verified([1], 1, RoundNote(drafted(7)))
    controller.verified([1], 1)
    assert [seen.steps for seen in policy.seen[-2:]] == [7, 0], "an announcement serves one result only"


def test_seconds_only_between_like_rounds() -> None:
    controller, _, policy, ticks = serving()

    def result(steps: int, requests: int) -> float | None:
        ticks.now += 0.5
        controller.verified([0] * requests, requests, RoundNote(drafted(steps)))
        return policy.seen[-1].seconds

    assert [result(3, 2), result(3, 2)] == [None, 0.5]
    assert [result(1, 2), result(0, 2), result(0, 2), result(1, 2)] == [0.5, None, 0.5, None]  # the draft catches up
    assert [result(1, 1), result(1, 1)] == [None, 0.5]  # after a change of batch size
    controller.interrupt()  # a prefill in between
    assert [result(1, 1), result(1, 1)] == [None, 0.5]


def test_round_times_keep_recent_medians_in_bounded_memory() -> None:
    controller, _, _, ticks = serving()
    for seconds in (9.0, 9.0, 1.0, 2.0, 3.0):
        ticks.now += seconds
        controller.verified([0, 0], 2)
    cells = controller.snapshot()["round_times"]
    assert cells == [{"batch_size": 2, "steps": 3, "seconds": 2.5, "rounds": 4}]  # the first one had no predecessor
    for requests in range(1, 1000):
        for _ in range(2):
            ticks.now += 0.001
            controller.verified([0] * requests, requests)
    assert len(controller.snapshot()["round_times"]) == 512


@pytest.mark.parametrize("where", ["choose", "observe"])
def test_failing_policy_degrades_to_the_launch_depth_once(where: str, caplog: pytest.LogCaptureFixture) -> None:
    controller, worker, policy, _ = serving(answer=7)
    controller.choose(1)
    assert worker.speculative_num_steps == 7
    policy.fails_on = where
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            controller.verified([1], 1)
            controller.choose(1)
    assert worker.speculative_num_steps == 3
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1 and errors[0].exc_info is not None
    shown = controller.snapshot()
    assert shown["degraded"] and "policy scripted raised" in shown["degraded_reason"]
    assert shown["recent_switches"][-1]["cause"] == "degraded"
    assert sum(shown["rounds_by_tier"].values()) == 3  # rounds are still counted


def test_missing_depth_degrades(caplog: pytest.LogCaptureFixture) -> None:
    controller, worker, policy, _ = serving(answer=7)
    controller.choose(1)
    policy.answer = 5
    controller.choose(1)
    assert worker.speculative_num_steps == 3
    assert controller.snapshot()["degraded_reason"] == "policy scripted chose 5 steps, which has no runtime state"
    assert sum("degraded to 3 steps" in record.message for record in caplog.records) == 1


def test_forced_depth_holds_while_the_policy_is_set_aside() -> None:
    controller, worker, policy, _ = serving(answer=1)
    controller.force_steps(7)
    controller.choose(1)
    policy.fails_on = "observe"
    controller.verified([1], 1)
    controller.choose(1)
    assert controller.snapshot()["degraded"] and worker.speculative_num_steps == 7
    controller.force_steps(0)
    controller.choose(1)
    assert worker.speculative_num_steps == 0
    controller.force_steps(None)
    controller.choose(1)
    assert worker.speculative_num_steps == 3
    assert [switch["cause"] for switch in controller.snapshot()["recent_switches"]] == ["forced", "forced", "degraded"]


def test_the_policy_hears_which_rounds_it_did_not_choose() -> None:
    controller, _, policy, _ = serving(answer=3)
    for held in (None, 7, None):
        controller.force_steps(held)
        controller.choose(1)
        controller.verified([1], 1)
    assert [seen.chosen for seen in policy.seen] == [True, False, True]


def test_a_round_is_no_deeper_than_it_has_room_for() -> None:
    controller, worker, policy, _ = serving(answer=7)
    ran = []
    for most, forced in ((None, None), (7, None), (6, None), (2, None), (0, None), (-3, None), (None, None), (2, 7)):
        controller.most_steps = most
        controller.force_steps(forced)
        controller.choose(1)
        ran.append(worker.speculative_num_steps)
    assert ran == [7, 7, 3, 1, 0, 0, 7, 1]
    causes = [switch["cause"] for switch in controller.snapshot()["recent_switches"]]
    assert causes == ["batch size"] + ["capacity"] * 5 and not controller.snapshot()["degraded"]
    policy.fails_on = "choose"
    controller.force_steps(None)
    controller.choose(1)
    assert worker.speculative_num_steps == 1, "the launch steps have no room either"


def test_a_warm_up_and_agreed_steps_keep_to_the_room_too() -> None:
    controller, worker, _, _ = serving(answer=7)
    controller.most_steps = 2
    controller.warm_up.begin()
    ran = set()
    for _ in range(8):
        controller.choose(1)
        ran.add(worker.speculative_num_steps)
    assert ran == {0, 1}
    controller.agreed = drafted(7), 3
    controller.choose(1)
    assert worker.speculative_num_steps == 3
    controller.end_warm_up()
    controller.agreed = drafted(7), None
    controller.choose(1)
    assert worker.speculative_num_steps == 7, "ranks agree on what all of them have room for"


def test_forcing_a_depth_that_was_not_built_names_those_that_were() -> None:
    controller, _, _, _ = serving()
    with pytest.raises(ValueError, match="no runtime state for 5 steps; built at start-up: 0, 1, 3, 7"):
        controller.force_steps(5)


def test_a_snapshot_does_not_change_later_and_is_json() -> None:
    controller, _, _, _ = serving(answer=7)
    before = controller.snapshot()
    controller.choose(1)
    controller.verified([5], 1)
    assert (before["switches"], before["current_steps"], before["rounds_by_tier"]) == (0, 3, {})
    assert (before["recent_switches"], before["round_times"], before["startup"]["warm_up_rounds"]) == ([], [], 0)
    shown = json.loads(json.dumps(controller.snapshot()))
    assert shown["rounds_by_tier"] == {"7": 1} and shown["answer"] == 7 and shown["active"] is True


def test_snapshot_survives_a_policy_that_cannot_describe_itself() -> None:
    controller, _, policy, _ = serving()
    policy.fails_on = "snapshot"
    assert controller.snapshot()["policy_error"] == "KeyError: 'lost'"


def learning(share_cost: Any) -> tuple[AdaptiveController, Learner]:
    policy = Learner()
    return fakes.controller(policy, share_cost=share_cost), policy


def test_every_rank_decides_on_the_first_ranks_table() -> None:
    first_ranks: list[Any] = []
    first, _ = learning(lambda payload: first_ranks.append(payload) or payload)
    other, follower = learning(lambda payload: first_ranks[-1])
    follower.seen.extend([RoundObservation(drafted(3), [0], 1)] * 2)  # a rank whose own measurements differ
    for _ in range(2):
        first.verified([1], 1)
        other.verified([1], 1)
    assert first_ranks == [{"rounds": 2}] and follower.table == {"rounds": 2}


def test_rank_without_a_table_does_not_leave_the_others_waiting() -> None:
    shared: list[Any] = []
    first, policy = learning(lambda payload: shared.append(payload))
    policy.fails_on = "export"
    for _ in range(2):
        first.verified([1], 1)
    assert shared == [None]
    assert "OverflowError" in first.snapshot()["degraded_reason"]
    other, _ = learning(lambda payload: None)
    for _ in range(2):
        other.verified([1], 1)
    assert "no cost table" in other.snapshot()["degraded_reason"]


def test_warm_up_runs_each_reachable_depth_in_turn_and_leaves_no_trace() -> None:
    controller, worker, policy, _ = serving(answer=3)
    controller.warm_up.begin()
    depths = []
    for _ in range(4):
        controller.choose(3)
        depths.append(worker.speculative_num_steps)
        controller.verified([0, 0, 0], 3, RoundNote(drafted(worker.speculative_num_steps)))
    assert depths == [0, 1, 3, 0]  # 3 requests run in the graph of 4, and 7 steps have none there
    startup = controller.snapshot()["startup"]
    assert (startup["warmed_batch_sizes"], startup["warm_up_rounds"]) == ([3], 4)
    controller.warm_up.begin()
    controller.choose(8)
    assert controller.snapshot()["startup"]["warmed_batch_sizes"] == []
    controller.end_warm_up()
    after = controller.snapshot()
    assert worker.speculative_num_steps == 3
    assert (after["switches"], after["rounds_by_tier"], policy.seen) == (0, {}, [])
    assert after["startup"]["warm_up_rounds"] == 5
    assert after["startup"]["warm_up_seconds"] > 0
    controller.choose(3)
    controller.verified([1, 1, 1], 3)
    assert [seen.steps for seen in policy.seen] == [3]


def test_without_graphs_every_depth_is_warmed() -> None:
    controller, worker, _, _ = serving(sizes=None)
    controller.warm_up.begin()
    for _ in range(4):
        controller.choose(5)
    assert worker.speculative_num_steps == 7
    assert controller.snapshot()["startup"]["warmed_batch_sizes"] == [5]


def test_a_warm_up_whose_end_was_lost_ends_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_adaptive.runtime.states.MOST_ROUNDS", 3)
    controller, worker, _, _ = serving(answer=1, sizes=[1])
    controller.warm_up.begin()
    for _ in range(5):
        controller.choose(1)
    assert worker.speculative_num_steps == 1
    assert controller.snapshot()["switches"] == 1


def test_lookup_rounds_have_graphs_at_their_batch_sizes_alone() -> None:
    """Kinds without a batch size that has graphs are not built, and other rounds never fall back on them."""
    for sizes, drafts in (([1, 4, 8, 16, 32, 64], [4, 8, 15, 31]), ([1, 8], [15, 31]), (None, [4, 8, 15, 31])):
        policy = ThroughputPolicy(3, ThroughputOptions(candidate_steps=(0, 1, 3, 7)))
        states = fakes.controller(policy, looks_up=True, device=Sized(sizes)).states
        assert sorted(states.captured.lookups) == drafts
        for count in drafts:
            captured = None if sizes is None else tuple(size for size in sizes if size in KINDS[count])
            assert states.captured.graphs[count] == captured
        assert [states.widest(size) for size in (1, 8, 16, 33)] == [31, 15, 7 if sizes == [1, 8] else 8, 7]
        assert states.fitting(states.of(31), 10) == drafted(7, why="capacity")


def test_a_configuration_without_room_for_their_numbers_looks_nothing_up() -> None:
    launched, later = (ThroughputPolicy(3, ThroughputOptions(candidate_steps=depths)) for depths in ((3, 4), (3,)))
    controller = fakes.controller(launched, looks_up=True)
    controller.replace_policy(later, by="test")
    assert not later.lookup_kinds, "4 is a depth of the draft here"


def test_texts_are_tracked_in_the_warm_up_and_not_after_a_failure() -> None:
    policy = ThroughputPolicy(3, ThroughputOptions(candidate_steps=(0, 1, 3, 7), lookup=True))
    controller = fakes.controller(policy, looks_up=True)
    assert not controller.tracks_texts
    controller.warm_up.begin()
    assert controller.tracks_texts
    controller.end_warm_up()
    assert not controller.tracks_texts
    while not controller.tracks_texts:
        fakes.serve(controller, 1, 0.5)
    for fit in (False, True):
        controller.lookups_fit = fit
        assert controller.tracks_texts is fit
    controller.policy_failed(RuntimeError("planted"))
    assert not controller.tracks_texts
