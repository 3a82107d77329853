"""Rounds that other steps would have taken for the same text, counted on the rounds that ran.

A *run* is the text of one request from one rejected draft to the next, whatever rounds served it. Rounds of ``t`` steps
take ``ceil(run / (t + 1))`` of them for a run: a draft that was right is right again from a later start, one that was
wrong is wrong again. For steps up to those that ran this is exact where the draft proposes the same token from any
start; for more steps it is a lower bound, which nobody asks for here.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from operator import add

_CODES = 256
"""A place in a run and an accepted count make one byte."""


class Recut:
    """How far each request is in its run, and the rounds that a round of the live steps stands for."""

    def __init__(self, rungs: Sequence[int]) -> None:
        """*rungs* are the positive candidate steps, ascending."""
        self._rungs = tuple(rungs)
        self._width = rungs[-1] + 1
        whole = math.lcm(*(steps + 1 for steps in rungs))
        most = _CODES // self._width
        self._wrap = whole if whole <= most else most
        """Length after which a run is taken to begin again: exact where every number of draft tokens divides it."""
        self._rounds = [self._table(steps) for steps in rungs]
        self._after = {steps: self._next(steps) for steps in range(1, self._width)}
        self._requests: list[Hashable] = []
        self._places = b""
        """Tokens of each request's run so far, times ``_width``."""

    def count(self, steps: int, counts: Sequence[int], requests: Sequence[Hashable]) -> list[int]:
        """Take in a round of *steps*; return the rounds that each of the rungs up to *steps* takes for its text.

        Without *requests* a place in the batch stands for a request, as long as the batch size stays.
        """
        places = self._align(len(counts), requests)
        codes = bytes(map(add, places, counts))
        self._places = codes.translate(self._after[steps])
        return [
            sum(codes.translate(table)) for table, rung in zip(self._rounds, self._rungs, strict=True) if rung <= steps
        ]

    def _align(self, size: int, requests: Sequence[Hashable]) -> bytes:
        now = list(requests) or list(range(size))
        if now != self._requests:
            known = dict(zip(self._requests, self._places, strict=True))
            self._places = bytes(known.get(request, 0) for request in now)
            self._requests = now
        return self._places

    def _table(self, steps: int) -> bytes:
        """Return by code the rounds of *steps* that begin in a round's text."""
        draft_tokens, table = steps + 1, bytearray(_CODES)
        for place in range(self._wrap):
            for accepted in range(self._width):
                end = place + accepted + 1
                table[place * self._width + accepted] = -(-end // draft_tokens) + (-place // draft_tokens)
        return bytes(table)

    def _next(self, steps: int) -> bytes:
        """Return by code the place after a round of *steps*: a run ends with the first draft that is rejected."""
        table = bytearray(_CODES)
        for place in range(self._wrap):
            table[place * self._width + steps] = (place + steps + 1) % self._wrap * self._width
        return bytes(table)
