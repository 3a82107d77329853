"""Which rounds say what smaller budgets would have kept of their drafts, and of how many of their steps."""

from __future__ import annotations

from collections.abc import Sequence

LOOKS = 4
"""Rounds from one look to the next."""
LEAST_REQUESTS = 8
"""Requests from which on rounds are looked at."""


def looked_steps(count: int, requests: int, steps: int, budget: int | None, ladder: Sequence[int]) -> int:
    """Return how many steps of round number *count* are looked at, the first ones; 0 for none.

    A round of *steps* with a *budget* says what it can of all its steps. One without it, None, is looked at as if it
    had fewer steps in turn: any of *ladder*, ascending, below which there is a budget.
    """
    if count % LOOKS or requests < LEAST_REQUESTS:
        return 0
    if budget is not None:
        return steps
    turns = [fewer for fewer in [rung for rung in ladder if rung][1:] if fewer <= steps]
    return turns[count // LOOKS % len(turns)] if turns else 0


def budgets_seen(ladder: Sequence[int], looked: int, budget: int | None) -> list[int]:
    """Return the budgets of *ladder* that a look at *looked* steps tells of; at most the *budget* of the round."""
    return [rung for rung in ladder if 0 < rung < looked and (budget is None or rung <= budget)]
