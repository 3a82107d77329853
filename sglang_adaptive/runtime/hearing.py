"""How often the draft is heard of at zero steps: how many rounds share one output of its extend.

An output foretells a token for each request, which the next round checks (``RoundObservation.shadow_accepts``). Rows in
between are held back, or only written to the draft's KV, which costs less.
"""

from __future__ import annotations

MOST_WRITES = 3
"""Times at most that rows are only written between two outputs."""
LEAST_EVERY = 3
"""Rows are never only written where fewer rounds than this are held."""
CURIOUS_ROUNDS = 4
"""Rounds from one foretold token to the next where the policy wants to hear more."""


def writes_between(requests: int, every: int) -> int:
    """Return how many times held rows are only written between two outputs, where *every* rounds are held.

    A large batch is heard of often enough if it is heard of less often: a token in two rounds, at eight rounds held,
    where a single request yields one in fifteen. Writing leaves a row owed, so it makes up for *every* - 1 rounds,
    which has to be more than one.
    """
    return min(MOST_WRITES, max(1, requests // 8)) if every >= LEAST_EVERY else 0


def hearing(requests: int, every: int, curious: bool) -> tuple[int, int]:
    """Return how many rounds are held at most, and how many times they are only written between two outputs.

    Where *curious*, few requests yield a token in ``CURIOUS_ROUNDS``, or as nearly so as *every* allows.
    """
    writes = writes_between(requests, every)
    wanted = CURIOUS_ROUNDS * requests
    return (min(every, wanted), 0) if curious and wanted < _apart(every, writes) else (every, writes)


def rounds_between_outputs(requests: int, every: int, curious: bool) -> int:
    """Return the rounds from one output to the next."""
    return _apart(*hearing(requests, every, curious))


def _apart(held: int, writes: int) -> int:
    return held + writes * (held - 1)
