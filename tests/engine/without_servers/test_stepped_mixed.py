"""Prefills that take running requests along, with grammars, stepped round by round."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.in_one_process import ran
from tests.launch_lab import LaunchLab


@pytest.fixture(scope="module")
def found(lab: LaunchLab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``mixed_steps`` found."""
    answer: dict[str, Any] = ran(lab, "mixed_steps", tmp_path_factory.mktemp("stepping"))
    return answer


def test_grammars_hold_in_mixed_batches_in_both_loops(found: dict[str, Any]) -> None:
    first, *others = found["runs"]
    for run in (first, *others):
        assert run["aborted"] == 0 < run["mixed"]
        assert run["outputs"] == first["outputs"]


def test_sglang_alone_aborts_them(found: dict[str, Any]) -> None:
    assert found["stock"]["aborted"] > 0
