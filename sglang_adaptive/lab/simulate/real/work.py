"""What is to be served: requests in the order in which they come, and who decodes beside whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sglang_adaptive.lab.simulate.acceptance import FloatArray
from sglang_adaptive.lab.simulate.population import IntArray
from sglang_adaptive.lab.simulate.real.texts import Texts


@dataclass(frozen=True, eq=False)
class Work:
    """A queue of requests; the same for every contender, so a faster one is through with it sooner."""

    name: str
    texts: Texts
    begin: IntArray
    """First position of each request in ``texts.accepted``, in the order of the queue."""
    end: IntArray
    kind: IntArray
    most: int
    """Requests that may decode at the same time."""
    arrivals: FloatArray | None = None
    """Second at which each request comes, ascending; None for a closed loop, which is always full."""

    @property
    def requests(self) -> int:
        """Requests in the queue."""
        return len(self.begin)

    @property
    def lengths(self) -> IntArray:
        """Output tokens of each request."""
        return np.asarray(self.end - self.begin)


class Live:
    """The requests that decode now, slot by slot, and how far each has come."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self._accepted = work.texts.accepted
        self._begin, self._end = work.begin.tolist(), work.end.tolist()
        self._arrivals = None if work.arrivals is None else work.arrivals.tolist()
        self._next = 0
        self.requests: list[int] = []
        """Place in the queue of each request that decodes."""
        self.positions: list[int] = []
        self._ends: list[int] = []
        self.joined_at = [float("nan")] * work.requests
        """Second at which each request began to decode."""
        self.finished_at = [float("nan")] * work.requests
        self.changes = 0
        """How often the batch has changed."""

    def drawn(self) -> list[int]:
        """Return ``L`` of each request at the position where it stands."""
        accepted = self._accepted
        return [accepted[at] for at in self.positions]

    def lookups(self) -> list[tuple[int, int]]:
        """Return of each request the match before drafts that are looked up, and how many of these are right."""
        match, right = self.work.texts.match, self.work.texts.looked_up
        assert match is not None and right is not None, "recorded without lookups"
        standing = zip(self.positions, self._ends, strict=True)
        return [(match[at], right[at]) if at < end else (0, 0) for at, end in standing]

    def advance(self, drawn: list[int], steps: int) -> list[int]:
        """Run a round of *steps*; return the accepted drafts of each request."""
        counts = [k if k < steps else steps for k in drawn]
        self.positions = [at + k + 1 for at, k in zip(self.positions, counts, strict=True)]
        return counts

    def leave(self, now: float) -> bool:
        """Let go of the requests that are done at second *now*; say whether there were any."""
        done = [slot for slot, (at, end) in enumerate(zip(self.positions, self._ends, strict=True)) if at >= end]
        for slot in reversed(done):
            self.finished_at[self.requests[slot]] = now
            del self.requests[slot], self.positions[slot], self._ends[slot]
        self.changes += bool(done)
        return bool(done)

    def join(self, now: float) -> bool:
        """Admit whoever has come by second *now* and has room; say whether anybody did."""
        first = self._next
        while len(self.requests) < self.work.most and self._next < self.work.requests and self._has_come(now):
            self.requests.append(self._next)
            self.positions.append(self._begin[self._next])
            self._ends.append(self._end[self._next])
            self.joined_at[self._next] = now
            self._next += 1
        self.changes += self._next > first
        return self._next > first

    def next_arrival(self) -> float | None:
        """Return the second at which the next request comes, None after the last."""
        if self._next >= self.work.requests:
            return None
        return 0.0 if self._arrivals is None else float(self._arrivals[self._next])

    @property
    def over(self) -> bool:
        """Whether the run ends: a closed loop when a slot stays empty, an open one when all is served."""
        if self._arrivals is None:
            return len(self.requests) < self.work.most
        return not self.requests and self._next >= self.work.requests

    def tokens(self) -> int:
        """Return the output tokens so far; what a last round verified past the end of a request is not counted."""
        queue = range(self._next)
        whole: int = sum(self._end[i] - self._begin[i] for i in queue)
        left = sum(end - at for end, at in zip(self._ends, self.positions, strict=True))
        return whole - left

    def _has_come(self, now: float) -> bool:
        return self._arrivals is None or self._arrivals[self._next] <= now
