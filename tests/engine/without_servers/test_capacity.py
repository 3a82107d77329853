"""The end of a context and of the KV cache: adaptive steps serve what the launch line serves with fixed steps.

In a nearly full pool later turns find as much of their prompts in the prefix cache as with fixed steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.capacity_steps import CONTEXT, DEPTHS, LAUNCH, SETUPS
from tests.engine.conversation_steps import ALL, CONVERSATIONS

POOL = 600
"""KV slots; all conversations together have ALL tokens."""
LARGE_POOL = 16384
LOOKED_UP = 31
"""Drafts of the widest rounds, which accept the most tokens beyond what a request wants."""
WITHIN = 0.005


@pytest.fixture(scope="module")
def without_speculation(stepped: Callable[..., Any]) -> dict[str, Any]:
    """Return the outputs of each run without speculation."""
    return {run["name"]: run["outputs"] for run in stepped("capacity_steps", "none")}


@pytest.mark.parametrize("setup", [setup for setup in SETUPS if setup != "none"])
def test_text_at_the_end_is_that_without_speculation(
    setup: str, stepped: Callable[..., Any], without_speculation: dict[str, Any]
) -> None:
    """Forced to the most steps, and to others in turn, in both loops; the runs check slots and rows themselves."""
    found = stepped("capacity_steps", setup)
    for run in found:
        assert run["outputs"] == without_speculation[run["name"]], run["name"]
        assert run["lost"] == 0
        # The last position stays free for a round that may start before the last one's end is known.
        assert max(position for _, position in run["rounds"]) <= CONTEXT - 2
        assert bool(run["mixed"]) == (setup == "mixed")
        assert bool(run["mixed with a grammar"]) == (run["name"] == "grammars")
        assert bool(run["skipped"]) == (run["name"] == "full" and run["overlap"])
    steps = {steps for run in found for steps, _ in run["rounds"]}
    possible = {depth for depth in DEPTHS if setup != "cached" or depth <= LAUNCH}
    assert steps == possible, "the end of a context is not everywhere"


@pytest.fixture(scope="module")
def outlined(stepped: Callable[..., Any]) -> dict[str, Any]:
    """Return the outputs with a grammar of outlines without speculation."""
    outputs: dict[str, Any] = stepped("outlines_steps", "none")["outputs"]
    return outputs


def test_grammars_that_take_nothing_back_draft_nothing(stepped: Callable[..., Any], outlined: dict[str, Any]) -> None:
    """Outlines has no rollback and other masks: fixed steps write wrong text, or the scheduler ends."""
    adaptive = stepped("outlines_steps", "adaptive")
    assert adaptive["outputs"] == outlined
    assert {steps for constrained, steps in adaptive["steps"] if constrained} == {0}
    assert DEPTHS[-2] in {steps for constrained, steps in adaptive["steps"] if not constrained}


@pytest.mark.xfail(raises=(AssertionError, RuntimeError), strict=True, reason="0.5.23: outlines has no rollback")
def test_grammars_of_outlines_at_fixed_steps(stepped: Callable[..., Any], outlined: dict[str, Any]) -> None:
    assert stepped("outlines_steps", "static")["outputs"] == outlined


def test_as_many_tokens_are_taken_as_with_fixed_steps(stepped: Callable[..., Any]) -> None:
    static, adaptive = (stepped("prompt_limits", kind) for kind in ("static", "adaptive"))
    assert adaptive == static
    taken = {(length, new) for length, new, refused in static["asked"] if refused is None}
    assert {(497, 11), (500, 8), (507, None)} <= taken
    assert not {(497, 12), (500, 9), (508, None)} & taken


def test_later_turns_are_cached_as_with_fixed_steps(stepped: Callable[..., Any]) -> None:
    """Deeper rounds reserve slots that the cache would lose; they wait until the pool has many to spare."""
    [plain], static = (stepped("conversation_steps", setup, str(POOL)) for setup in ("none", "static"))
    fixed = {run["overlap"]: run["share"] for run in static}
    for run in stepped(
        "conversation_steps", "lookups", str(POOL), str(LAUNCH)
    ):  # the policy's choice ends requests in another order
        assert run["outputs"] == plain["outputs"]
        assert run["share"] >= fixed[run["overlap"]] - WITHIN


def test_the_cache_has_only_what_clients_got(stepped: Callable[..., Any]) -> None:
    """A round may accept more tokens than the request wanted: no later turn has them.

    Depths are held because of zero steps: tokens whose draft keys and values are pending at the end are not kept.
    """
    for run in stepped("conversation_steps", "lookups", str(LARGE_POOL), str(LOOKED_UP)):
        # Without the last token, whose KV no round needed; the keys of EAGLE's cache are pairs.
        assert ALL - 2 * CONVERSATIONS <= run["kept"] <= ALL - CONVERSATIONS
