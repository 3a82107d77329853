"""How well drafts have lately fitted each request: its *level*, and the bins that levels are sorted into.

A request's level is an exponential average of its trials, a draft that was reached counting 1 if it was accepted and 0
if it was rejected:

    level += GAIN * (outcome - level)

Text comes in stretches, so the level says much about the request's next round. How much is learnt by bin (``table``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence

GAIN = 0.1
"""Weight of the latest trial in a level. On recorded text 0.1 forecasts better than 0.05 or 0.2."""
SHADOW_GAIN = 0.3
"""The same for a shadow trial, for they are few. With 0.1 four requests whose text has become easy stay at zero steps
for 100 rounds, with this for 30 (simulated)."""
EDGES = (0.15, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.94)
"""Levels that part the bins."""
BINS = len(EDGES) + 1
MIDDLES = tuple((low + high) / 2.0 for low, high in zip((0.05, *EDGES), (*EDGES, 0.98), strict=True))
"""Middle of each bin."""
USUAL = 0.6
"""Level of a request until any was seen."""
USUAL_GAIN = 0.02
"""Weight of one request's level in the usual one, which new requests begin with."""
_GRID = 255
_BIN_OF = bytes(bisect_right(EDGES, level / _GRID) for level in range(_GRID + 1))


class RequestLevels:
    """The levels of the requests in the batch, in the order of the latest round."""

    def __init__(self, depth: int) -> None:
        """*depth* is the largest number of steps."""
        self._next = [[_moved(steps, level) for level in range(_GRID + 1)] for steps in range(depth + 1)]
        self._requests: list[Hashable] = []
        self._now = self._before = b""
        """Levels on a grid of 256: after the latest round, and before it."""
        self.usual = USUAL

    @property
    def bins(self) -> bytes:
        """The bin of each request of the latest round, as known now."""
        return self._now.translate(_BIN_OF)

    def follow(self, steps: int, counts: Sequence[int], requests: Sequence[Hashable]) -> bytes:
        """Take in a round of *steps* drafts; return the bins that its requests were in when its steps were chosen.

        At 0 steps *counts* are shadow accepts.

        With overlap scheduling the steps of a round are chosen before the result of the round before has arrived.
        Without *requests* a place in the batch stands for a request; *counts* may be of fewer than all of them.
        """
        requests = requests or range(len(counts))
        if requests != self._requests:
            self._align(list(requests))
        bins, now = self._before.translate(_BIN_OF), self._now
        moved = self._next[steps]
        self._before = now
        seen = bytes([moved[level][count] for level, count in zip(now, counts, strict=False)])
        self._now = now = seen + now[len(seen) :]
        mean = sum(now) / (_GRID * len(now))
        self.usual += min(1.0, USUAL_GAIN * len(now)) * (mean - self.usual)
        return bins

    def set_all(self, level: float) -> None:
        """Take *level* for the level of every request."""
        self.usual = level
        self._now = self._before = bytes([round(level * _GRID)]) * len(self._now)

    def adopt(self, other: RequestLevels) -> None:
        """Begin from the levels of *other*."""
        self.usual, self._requests, self._now, self._before = other.usual, other._requests, other._now, other._before

    def _align(self, requests: list[Hashable]) -> None:
        usual = round(self.usual * _GRID)
        for name in ("_now", "_before"):
            known = dict(zip(self._requests, getattr(self, name), strict=True))
            setattr(self, name, bytes([known.get(request, usual) for request in requests]))
        self._requests = requests


def _moved(steps: int, level: int) -> bytes:
    """Return where a round of *steps* moves *level*, by accepted drafts; at 0 steps by the shadow accept."""
    drafted, gain = (steps, GAIN) if steps else (1, SHADOW_GAIN)
    moved, value = bytearray(), level / _GRID
    for accepted in range(drafted + 1):
        ended = value if accepted == drafted else value * (1.0 - gain)
        moved.append(round(ended * _GRID))
        value += gain * (1.0 - value)
    return bytes(moved)
