"""One rank: its requests, its policy, and what it sends to the others."""

from __future__ import annotations

import random
from collections import deque

import numpy as np

from benchmarks.attention_dp.scenes import BUSIEST, SPELLS, Scene
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.throughput.outlook import outlook
from sglang_adaptive.policy.throughput.policy import ThroughputPolicy
from sglang_adaptive.policy.vote.ballot import believed, silent
from sglang_adaptive.simulate.real.texts import Texts

SHADOW_EVERY = 8
"""Zero-step rounds from one of which the first drafts are known to the next."""
CLOCK = 0.025
"""Relative standard deviation of what a rank's clock reads."""


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
        self._waiting = self._served = 0
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

    def join(self, now: float, part: float) -> None:
        """Admit who has come by second *now*; *part* of the run is over."""
        while self._come and self._come[0] <= now:
            self._come.popleft()
            self._waiting += 1
        if self._clients:
            share = 1.0 if self._busy is None else self._busy[min(SPELLS - 1, int(part * SPELLS))]
            self._waiting = max(0, round(share * self._clients) - self.requests)
        while self._waiting and self.requests < BUSIEST:
            self._waiting -= 1
            self._served += 1
            request = self._next()
            self.positions.append(int(self._begin[request]))
            self._ends.append(int(self._end[request]))
            self._ids.append(self._served)

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

    def __init__(self, policy: ThroughputPolicy, depths: tuple[int, ...], seed: int) -> None:
        self.policy, self._depths = policy, depths
        self._noise = random.Random(seed)
        self._late: RoundObservation | None = None
        self._zeros = 0

    def row(self, requests: int, live: int) -> list[int]:
        """Return what the rank sends before a round."""
        if not requests:
            return silent(self._depths, live).row()
        return believed(self._depths, live, requests, *outlook(self.policy, requests, live)).row()

    def tell(self, steps: int, drawn: list[int], counts: list[int], ids: list[int], largest: int, took: float) -> None:
        """Note a round for later, and hand over the one before; times are filed under the *largest* batch."""
        self._zeros = 0 if steps else self._zeros + 1
        shadow = [min(k, 1) for k in drawn] if self._zeros and self._zeros % SHADOW_EVERY == 0 else []
        seconds = took * self._noise.gauss(1.0, CLOCK)
        before, self._late = (
            self._late,
            RoundObservation(steps, counts, largest, seconds, shadow_accepts=shadow, requests=ids) if counts else None,
        )
        if before is not None:
            self.policy.observe(before)
            if self.policy.cost_sync_due:
                self.policy.import_cost(self.policy.export_cost())
