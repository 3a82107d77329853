"""Budgets chosen by a policy, stepped round by round: exact, counted correctly, and learned from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.stepping import SLOTS

Run = dict[str, Any]


@pytest.fixture(scope="module")
def found(stepped: Callable[..., Any]) -> dict[str, Run]:
    return stepped("chosen_budget_steps")


@pytest.fixture(params=["scripted", "scripted, no overlap", "throughput"])
def run(found: dict[str, Run], request: pytest.FixtureRequest) -> Run:
    return found[request.param]


def places(run: Run) -> set[tuple[int, int | None]]:
    return {(one["steps"], one["budget"]) for one in run["told"]}


def written(run: Run) -> dict[str, list[int]]:
    return {rid: tokens[:20] if rid == "left" else tokens for rid, tokens in run["outputs"].items()}


def test_requests_write_what_they_write_without_drafts(found: dict[str, Run], run: Run) -> None:
    wanted = found["undrafted"]
    assert {steps for steps, _ in places(wanted)} == {0}
    assert written(run) == written(wanted)
    assert run["logprobs"] == pytest.approx(wanted["logprobs"], abs=1e-4)
    assert run["free_slots"] == SLOTS


@pytest.mark.parametrize("part", ["ranks", "completed"])
def test_after_an_error_all_drafts_are_verified(found: dict[str, Run], part: str) -> None:
    run = found[f"an error in {part}"]
    assert written(run) == written(found["undrafted"])
    assert run["free_slots"] == SLOTS
    assert run["report"]["reason"] == "RuntimeError: broken"
    budgets = [one["budget"] for one in run["told"]]
    last = max(at for at, budget in enumerate(budgets) if budget is not None)
    assert 3 < last < len(budgets) / 2
    assert {one["steps"] for one in run["told"][last + 1 :]} == {0, 1, 3, 7}


def test_the_script_switches_among_zero_steps_rectangles_and_budgets(found: dict[str, Run]) -> None:
    for name in ("scripted", "scripted, no overlap"):
        assert {(0, None), (3, None), (7, None), (3, 1), (7, 1), (7, 3)} <= places(found[name])


def test_the_real_policy_runs_both_kinds_of_rounds(found: dict[str, Run]) -> None:
    budgets = [one["budget"] for one in found["throughput"]["told"]]
    assert sum(budget is not None for budget in budgets) > 8
    assert None in budgets, "the first rounds are rectangles: nothing is known of the draft yet"


def test_a_request_has_as_many_trials_as_verified_drafts(run: Run) -> None:
    some = [one for one in run["told"] if one["budget"] is not None]
    assert some
    for one in some:
        counts, verified, completed = one["num_correct_drafts_per_req"], one["verified"], one["completed"]
        assert sum(verified) == one["budget"] * one["batch_size"] == one["budget"] * len(counts)
        for count, tried, whole in zip(counts, verified, completed, strict=True):
            assert count <= tried <= one["steps"]
            assert whole == count if count < tried else tried <= whole <= one["steps"]
    assert any(
        whole > count
        for one in some
        for count, whole in zip(one["num_correct_drafts_per_req"], one["completed"], strict=True)
    )


def test_a_round_tells_what_smaller_budgets_would_have_kept(run: Run) -> None:
    looks = [(one, one["evidence"]) for one in run["told"] if one["evidence"] is not None]
    assert {one["budget"] is None for one, _ in looks} == {True, False}
    for one, evidence in looks:
        counts = one["completed"] or one["num_correct_drafts_per_req"]
        assert evidence["whole"] == sum(min(count, evidence["steps"]) for count in counts)
        for budget, uniform in evidence["uniform"].items():
            assert uniform == sum(min(count, int(budget)) for count in counts)
        if one["budget"] is not None:
            own = evidence["ranked"][str(one["budget"])]
            assert own == sum(one["num_correct_drafts_per_req"]), "what it kept is what it had accepted"


def test_the_report_counts_the_rounds(run: Run) -> None:
    before = {(one["steps"], one["budget"]): one["rounds"] for one in run["before"]}
    after = {(one["steps"], one["budget"]): one["rounds"] for one in run["report"]["rounds"]}
    told = [(one["steps"], one["budget"]) for one in run["told"] if one["budget"] is not None]
    assert {place: after[place] - before.get(place, 0) for place in set(told)} == {p: told.count(p) for p in set(told)}
    assert run["report"]["reason"] is None and run["report"]["packed_rounds"] >= len(told)


def test_the_draft_s_chances_are_held_against_what_was_accepted(found: dict[str, Run]) -> None:
    bins = [one for one in found["throughput"]["report"]["calibration"] if one["trials"] > 6]
    assert len(bins) > 1
    for one in bins:
        assert one["from"] <= one["believed"] <= one["to"]
    assert bins[0]["accepted"] < bins[-1]["accepted"]
