"""What was written before drafts, stepped round by round, with another width in each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.in_one_process import ran
from tests.engine.servers import WIDTHS
from tests.launch_lab import LaunchLab

SLOTS = 8192


@pytest.fixture(scope="module")
def stepped(lab: LaunchLab, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each run of ``ngram_steps`` wrote: both loops of the scheduler, several orders of widths."""
    found: list[dict[str, Any]] = ran(lab, "ngram_steps", tmp_path_factory.mktemp("stepping"))
    return found


def test_a_width_a_turn_in_both_loops(stepped: list[dict[str, Any]]) -> None:
    without_drafts, *others = stepped
    assert without_drafts["ran"] == [0] and without_drafts["accepted"] == 0
    assert {tier for run in others for tier in run["ran"]} == set(WIDTHS)
    assert others[-1]["accepted"] > 100
    for found in stepped:
        assert found["outputs"] == without_drafts["outputs"]
        assert found["hidden_states_differ_by"] < 1e-4
        assert (found["free_slots"], found["degraded"]) == (SLOTS, None)
