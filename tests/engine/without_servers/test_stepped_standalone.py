"""A model of its own drafts, stepped round by round: zero steps leave no trace in its drafts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.in_one_process import ran
from tests.launch_lab import LaunchLab


@pytest.fixture(scope="module")
def pairs(lab: LaunchLab, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What every script of zero steps did with an extend in every round, and with held rows."""
    found: list[dict[str, Any]] = ran(lab, "standalone_steps", tmp_path_factory.mktemp("stepping"))
    return found


def test_drafts_are_those_of_an_extend_in_every_round(pairs: list[dict[str, Any]]) -> None:
    for pair in pairs:
        wanted, held = pair["wanted"], pair["held"]
        assert wanted["held_rounds"] == 0 < held["held_rounds"] and wanted["drafts"], pair["name"]
        assert held["outputs"] == wanted["outputs"], pair["name"]
        if pair["fault"] is None:
            for what in ("drafts", "rounds", "reason", "free_slots"):
                assert held[what] == wanted[what], f"{pair['name']}: {what}"


def test_drafts_would_tell_of_missing_rows(pairs: list[dict[str, Any]]) -> None:
    faults = [pair for pair in pairs if pair["fault"] is not None]
    assert faults and all(pair["held"]["drafts"] != pair["wanted"]["drafts"] for pair in faults)
