"""Sampling parameters act as they do without speculation, for every loop and round depth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.servers import TIERS, WIDTHS
from tests.engine.stepping import SLOTS


@pytest.fixture(scope="module")
def without(stepped: Callable[..., Any]) -> dict[str, list[int]]:
    """Return the outputs of a scheduler without speculation and without overlap."""
    asked, plainly = stepped("exact_steps", "nothing")
    outputs: dict[str, list[int]] = asked["outputs"]
    unchanged = {kind for kind, ids in outputs.items() if ids == plainly["outputs"][kind]}
    assert unchanged <= {"nothing", "presence"}, "parameters without an effect tell nothing"
    return outputs


@pytest.mark.parametrize(("algorithm", "depths"), [("EAGLE3", TIERS), ("NGRAM", WIDTHS)])
def test_every_text_is_that_without_speculation(
    stepped: Callable[..., Any], without: dict[str, list[int]], algorithm: str, depths: tuple[int, ...]
) -> None:
    runs = stepped("exact_steps", algorithm)
    for number, run in enumerate(runs):
        assert run["outputs"] == without, number
        assert (run["free_slots"], run["degraded"]) == (SLOTS, None)
        assert run["hidden_states_differ_by"] < 1e-4, number
    drafting_nothing, deepest, _, retracted = runs
    assert drafting_nothing["ran"] == [0] and set(retracted["ran"]) == set(depths)
    assert retracted["retracted"] > 0
    for kind, ids in without.items():
        looked_at = "countdown" in kind
        assert (deepest["verified"][kind] < len(ids) - 1) is not looked_at, kind
