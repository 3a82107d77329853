"""Requests come and go: who is in the batch at each round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

MEAN_LIFETIME_ROUNDS = 120
"""About 300 output tokens at an accept length of 2.5."""


@dataclass(frozen=True, eq=False)
class Population:
    """Who is decoding at each round.

    Load is indexed by rounds, not by seconds or tokens, so every policy meets the same batches: a faster
    policy does not drain its queue sooner. That keeps the comparison to the one thing a policy decides.
    """

    requests: IntArray
    """Request number by round and batch slot, ``-1`` past the batch; shape ``(rounds, max_batch)``."""

    batch: IntArray
    """Requests in each round, at least 1."""

    arrivals: IntArray
    """Requests that joined at each round; their prefill precedes it."""

    @property
    def count(self) -> int:
        """Requests in all."""
        return int(self.requests.max()) + 1


def closed_loop(target: IntArray, rng: np.random.Generator, max_batch: int) -> Population:
    """Keep ``target[t]`` requests decoding: who finishes is replaced at once, a lower target cuts."""
    return _admit([int(n) for n in target], [int(n) for n in target], rng, max_batch)


def open_loop(rate: NDArray[np.float64], rng: np.random.Generator, max_batch: int) -> Population:
    """Poisson arrivals of ``rate[t]`` a round: a full batch makes them queue, an empty one skips the wait."""
    arrivals = rng.poisson(rate)
    return _admit([int(n) for n in arrivals], None, rng, max_batch)


def _admit(
    arriving: Sequence[int], target: Sequence[int] | None, rng: np.random.Generator, max_batch: int
) -> Population:
    rounds = len(arriving)
    requests = np.full((rounds, max_batch), -1, dtype=np.int64)
    arrivals = np.zeros(rounds, dtype=np.int64)
    live: list[tuple[int, int]] = []
    born = queued = 0
    lifetimes = _lifetimes(rng)
    for now in range(rounds):
        live = [entry for entry in live if entry[1] > now]
        if target is not None:
            del live[target[now] :]
            joining = target[now] - len(live)
        else:
            queued += arriving[now]
            queued = max(queued, 0 if live else 1)
            joining = min(queued, max_batch - len(live))
            queued -= joining
        for _ in range(joining):
            live.append((born, now + next(lifetimes)))
            born += 1
        arrivals[now] = joining
        requests[now, : len(live)] = [number for number, _ in live]
    return Population(requests, (requests >= 0).sum(axis=1), arrivals)


def _lifetimes(rng: np.random.Generator) -> Iterator[int]:
    while True:
        yield from rng.geometric(1.0 / MEAN_LIFETIME_ROUNDS, size=256).tolist()
