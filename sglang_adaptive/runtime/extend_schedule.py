"""The intervals of the deferred draft extend at zero steps: how many rounds share one output.

An output has the draft's next token for each request, which the next round compares with the target's
(``RoundObservation.shadow_accepts``). Rows in between stay pending, or a cheaper pass writes their keys and values
alone.
"""

from __future__ import annotations

MOST_WRITES = 3
"""The most passes between two outputs that write keys and values alone."""
LEAST_EVERY = 3
"""Where fewer rounds than this may be pending, every pass has an output."""
SHADOW_ROUNDS = 4
"""Rounds between shadow drafts of a request where the policy wants more of them."""


def writes_between(requests: int, every: int) -> int:
    """Return how many passes between two outputs write keys and values alone, with at most *every* rounds pending.

    With eight rounds a single request yields a shadow draft in 15 rounds; a large batch yields enough at longer
    intervals. Such a pass leaves one row pending, so it processes *every* - 1 rounds, which has to be more than one.
    """
    return min(MOST_WRITES, max(1, requests // 8)) if every >= LEAST_EVERY else 0


def extend_schedule(requests: int, every: int, more: bool) -> tuple[int, int]:
    """Return the most pending rounds, and how many passes between two outputs write keys and values alone.

    With *more*, few requests yield a shadow draft in ``SHADOW_ROUNDS``, or as close to that as *every* allows.
    """
    writes = writes_between(requests, every)
    wanted = SHADOW_ROUNDS * requests
    return (min(every, wanted), 0) if more and wanted < _apart(every, writes) else (every, writes)


def rounds_between_outputs(requests: int, every: int, more: bool) -> int:
    """Return the rounds from one output to the next."""
    return _apart(*extend_schedule(requests, every, more))


def _apart(held: int, writes: int) -> int:
    return held + writes * (held - 1)
