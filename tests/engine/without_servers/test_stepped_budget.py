"""A forced verify budget, stepped round by round: exact, and spent on the drafts with the highest confidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from sglang_adaptive.audit.sampled import ALPHA, probability
from tests.engine.stepping import SLOTS

Run = dict[str, Any]


@pytest.fixture(scope="module")
def found(stepped: Callable[..., Any]) -> dict[str, Any]:
    return stepped("budget_steps")


@pytest.fixture
def wanted(found: dict[str, Any]) -> Run:
    """The run whose rounds verify rectangles."""
    run: Run = found["rectangles"]
    assert run["packed"] == 0 < len(run["drafts"])
    return run


@pytest.fixture
def runs(found: dict[str, Any]) -> list[Run]:
    """The runs with a budget."""
    assert all(run["packed"] > 20 for run in found["runs"])
    return list(found["runs"])


def written(run: Run) -> dict[str, list[int]]:
    """Return the output of each request; for the one that left, the part that all runs share."""
    return {rid: tokens[:20] if rid == "left" else tokens for rid, tokens in run["outputs"].items()}


def likeness(texts: list[list[int]], others: list[list[int]]) -> list[float]:
    """Return for each position the chance of such different tokens if both were sampled alike."""
    places = range(1, min(len(text) for text in texts + others))
    assert len(places) > 3
    return [probability(*(Counter(text[at] for text in some) for some in (texts, others))) for at in places]


def test_requests_write_what_they_write_without(wanted: Run, runs: list[Run]) -> None:
    for run in runs:
        assert written(run) == written(wanted), run["budget"]
        assert run["logprobs"] == pytest.approx(wanted["logprobs"], abs=1e-4)


def test_the_draft_proposes_what_it_proposes_without(wanted: Run, runs: list[Run]) -> None:
    """Depths differ, so the shorter of two proposals is compared."""
    proposed = {(first, position): tokens for first, position, tokens in wanted["drafts"]}
    for run in runs:
        same = [(tokens, proposed[first, at]) for first, at, tokens in run["drafts"] if (first, at) in proposed]
        assert len(same) > 50
        assert all(one[: len(other)] == other[: len(one)] for one, other in same)


def test_budgets_are_spent_and_not_exceeded(runs: list[Run]) -> None:
    for run in runs:
        for lengths in run["lengths"]:
            assert sum(lengths) == len(lengths) * (run["budget"] + 1)
            assert min(lengths) >= 1
        assert sum(len(set(lengths)) > 1 for lengths in run["lengths"]) > 10, "the draft is believed to know nothing"


def test_the_first_draft_has_a_chance_of_its_own(runs: list[Run]) -> None:
    """SGLang's draft extend sets it to 1, except after a prompt."""
    for run in runs:
        assert sum(0 < first < 1 for first in run["firsts"]) > len(run["firsts"]) / 2 > len(run["outputs"])


def test_no_slot_is_lost(wanted: Run, runs: list[Run]) -> None:
    for run in (wanted, *runs):
        assert run["free_slots"] == SLOTS
        assert run["retracted"] == 1


def test_pages_of_64_tokens(stepped: Callable[..., Any], wanted: Run) -> None:
    run = stepped("budget_steps", "--page-size", "64")["switched"]
    assert written(run) == written(wanted)
    assert run["packed"] > 20 and run["free_slots"] == SLOTS


def test_drafts_that_nobody_verified_would_be_noticed(found: dict[str, Any], wanted: Run) -> None:
    assert written(found["uncut"]) != written(wanted)
    assert min(likeness(found["uncut_often"], found["often"][0])) < ALPHA


def test_sampled_tokens_come_as_often_as_without_drafts(found: dict[str, Any]) -> None:
    undrafted, *budgeted = found["often"]
    for texts in budgeted:
        assert min(likeness(texts, undrafted)) >= ALPHA
