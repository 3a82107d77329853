"""A nearly full pool: later turns find as much of their prompts in the prefix cache as with fixed steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.engine.conversation_steps import ALL, CONVERSATIONS, LAUNCH

POOL = 600
"""KV slots; all conversations together have ALL tokens."""
LARGE_POOL = 16384
LOOKED_UP = 31
"""Drafts of the widest rounds, which accept the most tokens beyond what a request wants."""
WITHIN = 0.005


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
