"""One rank: its requests, its policy, and what it sends to the others."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

import numpy as np

from benchmarks.attention_dp.scenes import BUSIEST, SPELLS, Scene
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.throughput.outlook import outlook
from sglang_adaptive.policy.throughput.policy import ThroughputPolicy
from sglang_adaptive.policy.vote.ballot import believed, silent
from sglang_adaptive.simulate.real.texts import Texts

SHADOW_EVERY = 8
"""Zero-step rounds from one of which the first drafts are known to the next."""
TEXTS = 8
"""Texts that a request is taken to have, one after the other; the first alone needs a prefill."""
CLOCK = 0.025
"""Relative standard deviation of what a rank's clock reads."""


@dataclass(frozen=True)
class Timed:
    """A round of all ranks: requests of the rank with most, seconds, and whether a prefill was just before it."""

    largest: int
    seconds: float
    after_prefill: bool


class Rank:
    """The requests that a rank decodes, in its own order, which is the same for every contender."""

    def __init__(self, scene: Scene, number: int, texts: Texts, come: list[float], seed: int) -> None:
        self._accepted, self._begin, self._end = texts.accepted, texts.begin, texts.end
        kind = scene.kinds[number]
        self._own = np.flatnonzero((texts.kind == kind) if kind is not None else texts.kind >= 0)
        self._order = np.random.default_rng([seed, number])
        self._turn: list[int] = []
        self._clients = scene.clients[number]
        self._busy = None if scene.busy is None else scene.busy[number]
        self._come = deque(come)
        self._waiting, self._served, self._number = 0, 0, number
        self.positions: list[int] = []
        self._ends: list[int] = []
        self._ids: list[int] = []

    @property
    def requests(self) -> int:
        """Requests that decode."""
        return len(self.positions)

    @property
    def present(self) -> int:
        """The same, and those that wait for a place."""
        return len(self.positions) + self._waiting

    @property
    def next_arrival(self) -> float | None:
        """Second at which the next request comes by itself."""
        return self._come[0] if self._come else None

    def join(self, now: float, part: float) -> bool:
        """Admit who has come by second *now*, and say whether that takes a prefill; *part* of the run is over."""
        prefill = False
        while self._come and self._come[0] <= now:
            self._come.popleft()
            self._waiting += 1
        if self._clients:
            share = 1.0 if self._busy is None else self._busy[min(SPELLS - 1, int(part * SPELLS))]
            self._waiting = max(0, round(share * self._clients) - self.requests)
        while self._waiting and self.requests < BUSIEST:
            self._waiting -= 1
            self._served += 1
            prefill |= (self._served + self._number) % TEXTS == 0
            request = self._next()
            self.positions.append(int(self._begin[request]))
            self._ends.append(int(self._end[request]))
            self._ids.append(self._served)
        return prefill

    def drawn(self) -> list[int]:
        """Return how many drafts of a long chain each request would get accepted now."""
        accepted = self._accepted
        return [accepted[at] for at in self.positions]

    def advance(self, drawn: list[int], steps: int) -> tuple[list[int], list[int], int]:
        """Run a round of *steps*; return accepted drafts and ids of the requests, and the tokens of their texts."""
        counts, ids = [k if k < steps else steps for k in drawn], list(self._ids)
        before = sum(self.positions)
        ends = self._ends
        self.positions = [min(end, at + k + 1) for at, k, end in zip(self.positions, counts, ends, strict=True)]
        tokens = sum(self.positions) - before
        for slot in reversed([i for i, (at, end) in enumerate(zip(self.positions, ends, strict=True)) if at >= end]):
            del self.positions[slot], self._ends[slot], self._ids[slot]
        return counts, ids, tokens

    def _next(self) -> int:
        if not self._turn:
            self._turn = self._order.permutation(self._own).tolist()
        return self._turn.pop()


class Believer:
    """A rank's policy, told of each round a round late, as with overlap scheduling."""

    def __init__(self, policy: ThroughputPolicy, depths: tuple[int, ...], seed: int, served: bool = False) -> None:
        """*served* keeps from it what a server would not know.

        That is whether the draft would have been right at zero steps, which is seen every SHADOW_EVERY rounds else; and
        the times of rounds beside a prefill of any rank, or after another depth or largest batch.
        """
        self.policy, self._depths, self._served = policy, depths, served
        self._noise = random.Random(seed)
        self._late: RoundObservation | None = None
        self._shape = (0, 0)
        self._zeros = 0

    def row(self, requests: int, live: int) -> list[int]:
        """Return what the rank sends before a round."""
        if not requests:
            return silent(self._depths, live).row()
        return believed(self._depths, live, requests, *outlook(self.policy, requests, live)).row()

    def tell(self, steps: int, drawn: list[int], counts: list[int], ids: list[int], how: Timed) -> None:
        """Note a round for later, and hand over the one before; times are filed under the largest batch."""
        self._zeros = 0 if steps else self._zeros + 1
        seen = not self._served and self._zeros and self._zeros % SHADOW_EVERY == 0
        shadow = [min(k, 1) for k in drawn] if seen else []
        seconds: float | None = how.seconds * self._noise.gauss(1.0, CLOCK)
        shape, before = (how.largest, steps), self._late
        if self._served and (how.after_prefill or shape != self._shape):
            seconds = None
        if before is not None and self._served and how.after_prefill:
            before.seconds = None  # its result waits while the prefill is launched
        self._shape = shape
        self._late = (
            RoundObservation(steps, counts, how.largest, seconds, shadow_accepts=shadow, requests=ids)
            if counts
            else None
        )
        if before is not None:
            self.policy.observe(before)
            if self.policy.cost_sync_due:
                self.policy.import_cost(self.policy.export_cost())
