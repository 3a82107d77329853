"""The end of a context and of the KV cache: what the launch line serves with fixed steps is served, as without them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.capacity_steps import CONTEXT, DEPTHS, SETUPS
from tests.engine.in_one_process import ran
from tests.launch_lab import LaunchLab

Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def without_speculation(lab: LaunchLab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each run was sent by a server that does not speculate."""
    found: Found = ran(lab, "capacity_steps", tmp_path_factory.mktemp("stepping"), "none")
    return {run["name"]: run["outputs"] for run in found}


@pytest.mark.parametrize("setup", [setup for setup in SETUPS if setup != "none"])
def test_text_at_the_end_is_that_without_speculation(
    setup: str, lab: LaunchLab, tmp_path: Any, without_speculation: dict[str, Any]
) -> None:
    """Held at the most steps, and at others in turn, in both loops; the runs check slots and rows themselves."""
    found: Found = ran(lab, "capacity_steps", tmp_path, setup)
    for run in found:
        assert run["outputs"] == without_speculation[run["name"]], run["name"]
        assert run["lost"] == 0
        # The last position stays free for a round that may follow before the last one's end is known.
        assert max(position for _, position in run["rounds"]) <= CONTEXT - 2
        assert bool(run["mixed"]) == (setup == "mixed")
    steps = {steps for run in found for steps, _ in run["rounds"]}
    assert steps == set(DEPTHS), "the end of a context is not everywhere"


def test_as_many_tokens_are_taken_as_with_fixed_steps(lab: LaunchLab, tmp_path: Any) -> None:
    static, adaptive = (ran(lab, "prompt_limits", tmp_path, kind) for kind in ("static", "adaptive"))
    assert adaptive == static
    taken = {(length, new) for length, new, refused in static["asked"] if refused is None}
    assert {(497, 11), (500, 8), (507, None)} <= taken
    assert not {(497, 12), (500, 9), (508, None)} & taken
