"""Which texts arrive when, and which requests decode together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from sglang_adaptive.lab.simulate.cost import FloatArray
from sglang_adaptive.lab.simulate.real.texts import Texts
from sglang_adaptive.lab.simulate.trace import IntArray


@dataclass(frozen=True, eq=False)
class Work:
    """A queue of requests; the same for every contender, so a faster one finishes it sooner."""

    name: str
    texts: Texts
    begin: IntArray
    """First position of each request in ``texts.accepted``, in queue order."""
    end: IntArray
    kind: IntArray
    most: int
    """Requests that may decode at the same time."""
    arrivals: FloatArray | None = None
    """Second at which each request arrives, ascending; None for a closed loop, which is always full."""

    @property
    def lengths(self) -> IntArray:
        """Output tokens of each request."""
        return np.asarray(self.end - self.begin)


class Live:
    """The requests that decode now, slot by slot, and their positions."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self._accepted = work.texts.accepted
        self._begin, self._end = work.begin.tolist(), work.end.tolist()
        count = len(self._begin)
        self._arrivals: list[float] = [*([0.0] * count if work.arrivals is None else work.arrivals.tolist()), math.inf]
        self._next = 0
        self.requests: list[int] = []
        """Index in the queue of each request that decodes."""
        self.positions: list[int] = []
        self._ends: list[int] = []
        self.joined_at = [math.nan] * count
        """Second at which each request started to decode."""
        self.finished_at = [math.nan] * count

    def drawn(self) -> list[int]:
        """Return ``L`` of each request at its position."""
        accepted = self._accepted
        return [accepted[at] for at in self.positions]

    def lookups(self) -> list[tuple[int, int]]:
        """Return each request's match before the looked-up drafts, and how many of these are right."""
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
        """Remove the requests that are done at second *now*; return whether there were any."""
        done = [slot for slot, (at, end) in enumerate(zip(self.positions, self._ends, strict=True)) if at >= end]
        for slot in reversed(done):
            self.finished_at[self.requests[slot]] = now
            del self.requests[slot], self.positions[slot], self._ends[slot]
        return bool(done)

    def join(self, now: float) -> bool:
        """Admit requests that have arrived by second *now* and fit; return whether there were any."""
        first = self._next
        while len(self.requests) < self.work.most and self.next_arrival <= now:
            self.requests.append(self._next)
            self.positions.append(self._begin[self._next])
            self._ends.append(self._end[self._next])
            self.joined_at[self._next] = now
            self._next += 1
        return self._next > first

    @property
    def next_arrival(self) -> float:
        """Second at which the next request arrives; infinite after the last."""
        return self._arrivals[self._next]

    @property
    def over(self) -> bool:
        """Whether the run ends: a closed loop when a slot stays empty, an open one when everything is served."""
        if self.work.arrivals is None:
            return len(self.requests) < self.work.most
        return not self.requests and math.isinf(self.next_arrival)

    def tokens(self) -> int:
        """Return the output tokens so far, without those that a last round verified past a request's end."""
        whole: int = sum(self._end[: self._next]) - sum(self._begin[: self._next])
        left = sum(end - at for end, at in zip(self._ends, self.positions, strict=True))
        return whole - left


TOKENS_A_ROUND = 2.6
"""Rough tokens per round of a request; it sizes the queue."""
TURNS_OF_PHASES = 2
"""How often each category has its phase."""
BURST = (0.4, 0.7)
"""Part of the queue that is copies of one request."""
COPY_STARTS = 24
"""Near-copies begin at output positions 0 to 23 of the text that they copy."""

MIXED, PHASES, DRIFT, COPIES = "at random", "phases", "drift", "near-copies"


def scenes(texts: Texts, batch: int, rounds: int, seed: int) -> Iterator[Work]:
    """Yield closed loops of *batch* requests and about *rounds* rounds: each category alone, then all of them.

    Texts of one category have no phases and no drift.
    """
    size, several = queue_size(texts.mean_length, batch, rounds), len(texts.kinds) > 1
    if several:
        for kind, name in enumerate(texts.kinds):
            own = np.flatnonzero(texts.kind == kind)
            mean = float((texts.end - texts.begin)[own].mean())
            yield closed(name, texts, _shuffled(own, queue_size(mean, batch, rounds), _rng(seed, batch, name)), batch)
    every = np.arange(len(texts.begin))
    yield closed(MIXED, texts, _shuffled(every, size, _rng(seed, batch, MIXED)), batch)
    if several:
        yield closed(PHASES, texts, _phases(texts, size, _rng(seed, batch, PHASES)), batch)
        yield closed(DRIFT, texts, _drift(texts, size, _rng(seed, batch, DRIFT)), batch)
    yield _near_copies(texts, every, size, batch, _rng(seed, batch, COPIES))


def arrivals(texts: Texts, rate: float, rounds: int, most: int, seed: int) -> Work:
    """Return random requests that arrive in a Poisson process of *rate* per second, enough for about *rounds*."""
    rng = _rng(seed, most, MIXED)
    size = queue_size(texts.mean_length, max(1, most // 4), rounds)
    order = _shuffled(np.arange(len(texts.begin)), size, rng)
    return replace(closed(MIXED, texts, order, most), arrivals=np.cumsum(rng.exponential(1.0 / rate, len(order))))


def _rng(seed: int, batch: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, batch, *name.encode()])


def queue_size(mean_length: float, batch: int, rounds: int) -> int:
    """Return how many requests of about *mean_length* tokens about *rounds* rounds of *batch* of them take."""
    return max(2 * batch, int(np.ceil(rounds * batch * TOKENS_A_ROUND / mean_length)) + batch)


def closed(name: str, texts: Texts, order: IntArray, batch: int) -> Work:
    """Return a closed loop of *batch* requests; *order* has the index of each in *texts*."""
    return Work(name, texts, texts.begin[order], texts.end[order], texts.kind[order], batch)


def _shuffled(own: IntArray, size: int, rng: np.random.Generator) -> IntArray:
    """Return *size* of the requests *own*: all of them in random order, repeatedly."""
    turns = [rng.permutation(own) for _ in range(-(-size // len(own)))]
    return np.asarray(np.concatenate(turns)[:size])


def _phases(texts: Texts, size: int, rng: np.random.Generator) -> IntArray:
    """Return stretches of one category each, all with about the same number of tokens."""
    share = size * texts.mean_length / (TURNS_OF_PHASES * len(texts.kinds))
    parts = []
    for _ in range(TURNS_OF_PHASES):
        for kind in rng.permutation(len(texts.kinds)):
            own = np.flatnonzero(texts.kind == kind)
            mean = float((texts.end - texts.begin)[own].mean())
            parts.append(_shuffled(own, max(1, round(share / mean)), rng))
    return np.concatenate(parts)


def _drift(texts: Texts, size: int, rng: np.random.Generator) -> IntArray:
    """Return one half of the categories at first and the other half at last, with a continuously changing share."""
    halves = np.array_split(rng.permutation(len(texts.kinds)), 2)
    pools = [_shuffled(np.flatnonzero(np.isin(texts.kind, half)), size, rng) for half in halves]
    late = rng.random(size) < np.linspace(0.0, 1.0, size)
    return np.where(late, pools[1], pools[0])


def _near_copies(texts: Texts, every: IntArray, size: int, batch: int, rng: np.random.Generator) -> Work:
    """Return random requests, with a burst of one of them that starts a little differently each time."""
    work = closed(COPIES, texts, _shuffled(every, size, rng), batch)
    burst = slice(int(BURST[0] * size), int(BURST[1] * size))
    long = np.flatnonzero(texts.end - texts.begin > 2 * COPY_STARTS)
    copied = int(rng.choice(long if long.size else every))
    begin, end, kind = work.begin.copy(), work.end.copy(), work.kind.copy()
    most = min(COPY_STARTS, int(texts.end[copied] - texts.begin[copied]))
    begin[burst] = texts.begin[copied] + rng.integers(0, most, size)[burst]
    end[burst], kind[burst] = texts.end[copied], texts.kind[copied]
    return replace(work, begin=begin, end=end, kind=kind)
