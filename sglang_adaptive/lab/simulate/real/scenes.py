"""Which texts come when: one category, all at random, in phases, drifting, a burst of near-copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sglang_adaptive.lab.simulate.population import IntArray
from sglang_adaptive.lab.simulate.real.texts import Texts
from sglang_adaptive.lab.simulate.real.work import Work

TOKENS_A_ROUND = 2.6
"""Tokens of a request in a round, roughly: it sizes the queue."""
TURNS_OF_PHASES = 2
"""How often each category has its phase."""
BURST = (0.4, 0.7)
"""Part of the queue that is copies of one request."""
COPY_STARTS = 24
"""Near-copies begin at output positions 0 to 23 of the text that they copy."""

MIXED, PHASES, DRIFT, COPIES = "at random", "phases", "drift", "near-copies"


def scenes(texts: Texts, batch: int, rounds: int, seed: int, alone: bool = True) -> Iterator[Work]:
    """Yield the closed loops of *batch* requests and some *rounds* rounds; *alone* adds each category by itself.

    Texts of one category have no phases and no drift.
    """
    size, several = _requests(texts, batch, rounds), len(texts.kinds) > 1
    if alone and several:
        for kind, name in enumerate(texts.kinds):
            own = np.flatnonzero(texts.kind == kind)
            mean = float((texts.end - texts.begin)[own].mean())
            yield _closed(name, texts, _shuffled(own, queue_size(mean, batch, rounds), _rng(seed, batch, name)), batch)
    every = np.arange(len(texts.begin))
    yield _closed(MIXED, texts, _shuffled(every, size, _rng(seed, batch, MIXED)), batch)
    if several:
        yield _closed(PHASES, texts, _phases(texts, size, _rng(seed, batch, PHASES)), batch)
        yield _closed(DRIFT, texts, _drift(texts, size, _rng(seed, batch, DRIFT)), batch)
    yield _near_copies(texts, every, size, batch, _rng(seed, batch, COPIES))


def arrivals(texts: Texts, rate: float, rounds: int, most: int, seed: int, name: str) -> Work:
    """Return requests at random that come in a Poisson process of *rate* a second, as many as serve some *rounds*."""
    rng = _rng(seed, most, name)
    order = _shuffled(np.arange(len(texts.begin)), _requests(texts, max(1, most // 4), rounds), rng)
    return replace(_closed(name, texts, order, most), arrivals=np.cumsum(rng.exponential(1.0 / rate, len(order))))


def _rng(seed: int, batch: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, batch, *name.encode()])


def _requests(texts: Texts, batch: int, rounds: int) -> int:
    return queue_size(texts.mean_length, batch, rounds)


def queue_size(mean_length: float, batch: int, rounds: int) -> int:
    """Return the requests of about *mean_length* tokens that some *rounds* rounds of *batch* of them take."""
    return max(2 * batch, int(np.ceil(rounds * batch * TOKENS_A_ROUND / mean_length)) + batch)


def _closed(name: str, texts: Texts, order: IntArray, batch: int) -> Work:
    return Work(name, texts, texts.begin[order], texts.end[order], texts.kind[order], batch)


def _shuffled(own: IntArray, size: int, rng: np.random.Generator) -> IntArray:
    """Return *size* of the requests *own*: all of them in random order, again and again."""
    turns = [rng.permutation(own) for _ in range(-(-size // len(own)))]
    return np.asarray(np.concatenate(turns)[:size])


def _phases(texts: Texts, size: int, rng: np.random.Generator) -> IntArray:
    """Return stretches of one category each, all of about the same number of tokens."""
    share = size * texts.mean_length / (TURNS_OF_PHASES * len(texts.kinds))
    parts = []
    for _ in range(TURNS_OF_PHASES):
        for kind in rng.permutation(len(texts.kinds)):
            own = np.flatnonzero(texts.kind == kind)
            mean = float((texts.end - texts.begin)[own].mean())
            parts.append(_shuffled(own, max(1, round(share / mean)), rng))
    return np.concatenate(parts)


def _drift(texts: Texts, size: int, rng: np.random.Generator) -> IntArray:
    """Return one half of the categories at first and the other at last, the share changing all along."""
    halves = np.array_split(rng.permutation(len(texts.kinds)), 2)
    pools = [_shuffled(np.flatnonzero(np.isin(texts.kind, half)), size, rng) for half in halves]
    late = rng.random(size) < np.linspace(0.0, 1.0, size)
    return np.where(late, pools[1], pools[0])


def _near_copies(texts: Texts, every: IntArray, size: int, batch: int, rng: np.random.Generator) -> Work:
    """Return requests at random, with a burst of one of them that begins a little differently each time."""
    work = _closed(COPIES, texts, _shuffled(every, size, rng), batch)
    burst = slice(int(BURST[0] * size), int(BURST[1] * size))
    long = np.flatnonzero(texts.end - texts.begin > 2 * COPY_STARTS)
    copied = int(rng.choice(long if long.size else every))
    begin, end, kind = work.begin.copy(), work.end.copy(), work.kind.copy()
    most = min(COPY_STARTS, int(texts.end[copied] - texts.begin[copied]))
    begin[burst] = texts.begin[copied] + rng.integers(0, most, size)[burst]
    end[burst], kind[burst] = texts.end[copied], texts.kind[copied]
    return replace(work, begin=begin, end=end, kind=kind)
