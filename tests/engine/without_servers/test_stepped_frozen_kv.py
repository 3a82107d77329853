"""A draft that reads the target's KV, stepped round by round, with another depth in each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.frozen_kv_steps import DEPTHS
from tests.engine.in_one_process import ran
from tests.engine.stepping import SLOTS
from tests.launch_lab import LaunchLab


@pytest.fixture(scope="module")
def found(lab: LaunchLab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``frozen_kv_steps`` found: both loops of the scheduler, several orders of depths."""
    answer: dict[str, Any] = ran(lab, "frozen_kv_steps", tmp_path_factory.mktemp("stepping"))
    return answer


@pytest.fixture
def stepped(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What each run wrote."""
    runs: list[dict[str, Any]] = found["runs"]
    return runs


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


def test_every_depth_has_backends_of_its_own_and_no_graph_of_another(found: dict[str, Any]) -> None:
    built = found["built"]
    assert built["backends"] == 2 * built["states"] == 2 * (len(DEPTHS) + 1)
    assert built["in_force"] and not built["graph_of_another_depth"]
    assert built["kept"] == ["of the live depth", True, True]
