"""A draft that reads the target's KV, stepped round by round, with another depth in each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.frozen_kv_steps import DEPTHS
from tests.engine.in_one_process import ran
from tests.engine.stepping import SLOTS


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each run of ``frozen_kv_steps`` wrote: both loops of the scheduler, several orders of depths."""
    found: list[dict[str, Any]] = ran("frozen_kv_steps", tmp_path_factory.mktemp("stepping"))
    return found


def test_a_depth_a_turn_in_both_loops(stepped: list[dict[str, Any]]) -> None:
    without_drafts, *others = stepped
    assert without_drafts["ran"] == [0] and without_drafts["accepted"] == 0
    assert {tier for run in others for tier in run["ran"]} == set(DEPTHS)
    assert all(run["accepted"] > 0 for run in others if run["ran"] != [0])
    for found in stepped:
        assert found["outputs"] == without_drafts["outputs"]
        assert (found["free_slots"], found["degraded"]) == (SLOTS, None)


def test_drafts_after_zero_steps_are_those_of_rounds_that_all_draft(stepped: list[dict[str, Any]]) -> None:
    """The draft at a place in the text depends on the text alone, not on the rounds that wrote it."""
    drafted: dict[tuple[int, int], list[int]] = {}
    compared = 0
    for run in stepped:
        for prompt, position, tokens in run["drafts"]:
            known = drafted.setdefault((prompt, position), tokens)
            shared = min(len(known), len(tokens))
            assert known[:shared] == tokens[:shared]
            compared += known is not tokens
            drafted[prompt, position] = max(known, tokens, key=len)
    assert compared > 100
