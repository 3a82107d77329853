"""A closed loop on a trace: a batch that stays full, fed by its requests in a drawn order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sglang_adaptive.traces import Trace

IntArray = npt.NDArray[np.int64]


class Slots:
    """Where each request of the batch stands, as rows of the trace. A request that is done gives way to the next."""

    def __init__(self, trace: Trace, batch: int, seed: int, parts: int = 1) -> None:
        """Requests come in a drawn order; with several *parts* those of each part of the trace in turn."""
        self._trace, self._draw = trace, np.random.default_rng(seed)
        self._starts, self._length = trace.starts, trace.length.astype(np.int64)
        self._parts = np.array_split(np.arange(len(self._length)), parts)
        self._queue: list[int] = []
        self._turns = 0
        first = [self._next() for _ in range(batch)]
        self.requests = np.array(first)
        """Which each slot holds."""
        self.rows = self._starts[first]
        self._ends = self.rows + self._length[first]

    def advance(self, tokens: IntArray) -> int:
        """Move each request on by its *tokens*; return how many of them its text had left."""
        left = self._ends - self.rows
        done = tokens >= left
        self.rows = self.rows + tokens
        for slot in np.nonzero(done)[0]:
            request = self.requests[slot] = self._next()
            self.rows[slot] = self._starts[request]
            self._ends[slot] = self._starts[request] + self._length[request]
        return int(np.minimum(tokens, left).sum())

    def _next(self) -> int:
        if not self._queue:
            self._queue = self._draw.permutation(self._parts[self._turns % len(self._parts)]).tolist()
            self._turns += 1
        return self._queue.pop()


@dataclass
class Tally:
    """What a run came to."""

    tokens: int = 0
    rounds: int = 0
    verified: int = 0
    """Drafts, of all requests."""
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds
