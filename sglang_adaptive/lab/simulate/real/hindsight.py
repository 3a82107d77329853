"""The oracles of a cell, each played a few times: at the rate, and with the averages, of the time before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sglang_adaptive.lab.simulate.acceptance import FloatArray
from sglang_adaptive.lab.simulate.engine import Drivable
from sglang_adaptive.lab.simulate.population import IntArray
from sglang_adaptive.lab.simulate.real.oracles import CONTEXTS, KnowsContexts, KnowsDrafts, KnowsKinds
from sglang_adaptive.lab.simulate.real.serve import Served, serve
from sglang_adaptive.lab.simulate.real.work import Live, Work

ORACLES = {
    "knows-kinds": "knows each request's category; progress over its own pace",
    "knows-contexts": "best rule on each request's round before last, in hindsight",
    "knows-drafts": "knows how many drafts each request will get accepted",
}
TRIES = 3
STILL = np.ones(1)
"""The clock of an oracle, which reads none."""


@dataclass(eq=False)
class Hindsight:
    """A closed loop, and its run at the best single depth, which no oracle falls below."""

    work: Work
    ladder: Sequence[int]
    table: FloatArray
    single: Served
    rounds: Sequence[IntArray]
    """Rounds that each request takes at each of *ladder*."""

    def run(self, oracle: str) -> Served:
        """Return the best run of *oracle*, one of ``ORACLES``."""
        tries = {"knows-kinds": self._kinds, "knows-contexts": self._contexts, "knows-drafts": self._drafts}
        return max([self.single, *tries[oracle]()], key=_rate)

    def _kinds(self) -> list[Served]:
        live = Live(self.work)
        return [self._serve(KnowsKinds(live, self.ladder, self.table, _pace(self.work, self.rounds)), live)]

    def _drafts(self) -> list[Served]:
        runs = [self.single]
        for _ in range(TRIES):
            live = Live(self.work)
            policy = KnowsDrafts(live, self.ladder, self.table, self._progress, self._price(runs[-1]))
            runs.append(self._serve(policy, live))
        return runs

    def _contexts(self) -> list[Served]:
        runs = [self.single]
        foretold = np.tile(self._progress.mean(axis=0), (CONTEXTS, 1))
        for _ in range(TRIES):
            live = Live(self.work)
            policy = KnowsContexts(live, self.ladder, self.table, self._progress, self._price(runs[-1]), foretold)
            runs.append(self._serve(policy, live))
            foretold = policy.found()
        return runs

    @property
    def _best(self) -> int:
        """Steps of the best single depth."""
        return int(self.single.steps[0])

    @cached_property
    def _progress(self) -> FloatArray:
        return self.work.texts.progress(self.ladder, self._best)

    def _price(self, last: Served) -> float:
        """Return the progress a second of the whole batch at the rate of the run *last*."""
        most = self.work.most
        return most / float(self.table[most, self._best]) * _rate(last) / _rate(self.single)

    def _serve(self, policy: Drivable, live: Live) -> Served:
        return serve(policy, live, self.ladder, self.table, STILL)


def _rate(served: Served) -> float:
    return served.tokens / served.seconds


def _pace(work: Work, rounds: Sequence[IntArray]) -> FloatArray:
    """Return tokens a round by category and by place in the ladder; 1 where a category is not in the queue."""
    kinds = len(work.texts.kinds)
    tokens = np.bincount(work.kind, work.lengths, kinds)
    taken = np.stack([np.bincount(work.kind, each, kinds) for each in rounds], axis=1)
    return np.where(taken > 0, tokens[:, None] / np.maximum(taken, 1), 1.0)
