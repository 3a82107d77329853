"""How often the deferred draft extend of zero steps yields an output: how many rounds share one.

An output holds the draft's next token for each request, which the next round checks
(``RoundObservation.shadow_accepts``). Rows in between are held, or only written to the draft's KV, which costs less.
"""

from __future__ import annotations

MOST_WRITES = 3
"""Times at most that rows are only written between two outputs."""
LEAST_EVERY = 3
"""Rows are never only written where fewer rounds than this are held."""
SHADOW_ROUNDS = 4
"""Rounds from one shadow draft of a request to the next where the policy wants more of them."""


def writes_between(requests: int, every: int) -> int:
    """Return how many times held rows are only written between two outputs, where *every* rounds are held.

    With eight rounds held a single request yields a shadow draft in 15 rounds; a large batch yields enough at longer
    intervals. Writing leaves a row owed, so it makes up for *every* - 1 rounds, which has to be more than one.
    """
    return min(MOST_WRITES, max(1, requests // 8)) if every >= LEAST_EVERY else 0


def extend_schedule(requests: int, every: int, more: bool) -> tuple[int, int]:
    """Return how many rounds are held at most, and how many times they are only written between two outputs.

    Where *more*, few requests yield a token in ``SHADOW_ROUNDS``, or as nearly so as *every* allows.
    """
    writes = writes_between(requests, every)
    wanted = SHADOW_ROUNDS * requests
    return (min(every, wanted), 0) if more and wanted < _apart(every, writes) else (every, writes)


def rounds_between_outputs(requests: int, every: int, more: bool) -> int:
    """Return the rounds from one output to the next."""
    return _apart(*extend_schedule(requests, every, more))


def _apart(held: int, writes: int) -> int:
    return held + writes * (held - 1)
