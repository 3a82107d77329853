"""Sampling parameters mean what they mean without speculation, whatever the loop and the depths of rounds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.in_one_process import ran
from tests.launch_lab import LaunchLab


@pytest.fixture(scope="module")
def without(lab: LaunchLab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """The texts of a scheduler that does not speculate, in the loop without overlap."""
    asked, plainly = ran(lab, "exact_steps", tmp_path_factory.mktemp("exact"), "nothing")
    outputs: dict[str, list[int]] = asked["outputs"]
    unchanged = {kind for kind, ids in outputs.items() if ids == plainly["outputs"][kind]}
    assert unchanged <= {"nothing", "presence"}, "parameters without an effect tell nothing"
    return outputs


@pytest.mark.parametrize("algorithm", ["EAGLE3", "NGRAM"])
def test_every_text_is_that_without_speculation(
    lab: LaunchLab, without: dict[str, list[int]], tmp_path_factory: pytest.TempPathFactory, algorithm: str
) -> None:
    runs: list[dict[str, Any]] = ran(lab, "exact_steps", tmp_path_factory.mktemp("exact"), algorithm)
    for number, run in enumerate(runs):
        assert run["outputs"] == without, number
    deepest, _, retracted, *_ = runs
    assert retracted["retracted"] > 0
    for kind, ids in without.items():
        looked_at = "countdown" in kind
        assert (deepest["rounds"][kind] < len(ids) - 1) is not looked_at, kind
