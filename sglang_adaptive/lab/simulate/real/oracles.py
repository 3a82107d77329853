"""What one depth for the whole batch can reach with knowledge that no server has, played a few times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sglang_adaptive.lab.simulate.cost import FloatArray
from sglang_adaptive.lab.simulate.real.scenes import Live, Work
from sglang_adaptive.lab.simulate.real.serve import Served, serve
from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.choice import Choice, Coming, drafted

# A round's value is the progress it brings to each request, less the price of its seconds. Progress is relative to the
# request's own pace: it counts the rounds that its text would take at the best single depth. Tokens would work equally
# well for similar texts; for different ones, the depth with most tokens/s leaves the hard requests in the batch.


FRESH, NONE, SOME, ALL = range(4)
"""What is known about a request's round before last: nothing, or how many of its drafts were accepted."""
CONTEXTS = 4


class KnowsKinds(AdaptivePolicy):
    """Knows each request's category, and what a round at each depth yields there on average.

    Relative to the live steps, s, other steps s' take ``T(B, s') / T(B, s) x mean_r pace_r(s) / pace_r(s')`` of the
    time for the batch's texts, where ``pace_r`` is the tokens per round of the request's category.
    """

    learns = False

    def __init__(self, live: Live, ladder: Sequence[int], seconds: FloatArray, pace: FloatArray) -> None:
        """*seconds* are those of a round by batch size and index in *ladder*; *pace* is its tokens by category."""
        self._live, self._ladder, self._seconds = live, ladder, seconds
        self._slower = pace[:, :, None] / pace[:, None, :]
        """By category, live steps and other steps: rounds that the other steps take for one round of the live ones."""
        self._kind = live.work.kind
        self._at = len(ladder) // 2
        self._seen: list[int] = []

    def choose(self, coming: Coming) -> Choice:
        """Return the steps with the highest expected speed for the batch's texts; moves only when the batch changes."""
        if self._live.requests != self._seen:
            self._seen = list(self._live.requests)
            kinds = self._kind[self._seen]
            times = self._seconds[coming.batch_size] * self._slower[kinds, self._at].mean(axis=0)
            self._at = int(np.argmin(times))
        return drafted(self._ladder[self._at])


class KnowsDrafts(AdaptivePolicy):
    """Knows how many drafts of each request will be accepted, in the next round and in all later ones."""

    learns = False

    def __init__(self, live: Live, ladder: Sequence[int], price: FloatArray, progress: FloatArray) -> None:
        """*price* is the progress that a round must bring, by batch size; *progress* is ``Texts.progress``."""
        self._live, self._ladder, self._price, self._progress = live, ladder, price, progress

    def choose(self, coming: Coming) -> Choice:
        """Return the steps with the most progress over their price."""
        return drafted(self._paying(self._progress[self._live.positions], coming))

    def _paying(self, brought: FloatArray, coming: Coming) -> int:
        """Return the steps whose progress, *brought* by request, is most over their price."""
        return self._ladder[int(np.argmax(brought.sum(axis=0) - self._price[coming.batch_size]))]


class KnowsContexts(KnowsDrafts):
    """Knows what each context of the last rounds predicts on average, and has the server's lag.

    A request's context is whether all, some or none of its drafts were accepted in its round before last; the result of
    the last round has not arrived. *foretold* is the mean progress by context and index in the ladder.
    """

    def __init__(self, *drafts: Any, foretold: FloatArray) -> None:
        super().__init__(*drafts)
        self._foretold = foretold
        self._known: dict[int, int] = {}
        self._arriving: dict[int, int] = {}
        self._sums = np.zeros((CONTEXTS, len(self._ladder)))
        self._counts = np.zeros(CONTEXTS)

    def choose(self, coming: Coming) -> Choice:
        """Return the steps with the most progress over their price, by the contexts of the batch."""
        live = self._live
        contexts = [self._known.get(request, FRESH) for request in live.requests]
        np.add.at(self._sums, contexts, self._progress[live.positions])
        np.add.at(self._counts, contexts, 1.0)
        steps = self._paying(self._foretold[contexts], coming)
        self._known = self._arriving
        drawn = zip(live.requests, live.drawn(), strict=True)
        self._arriving = {request: _context(k, steps) for request, k in drawn}
        return drafted(steps)

    def found(self) -> FloatArray:
        """Return this run's mean progress by context; a context that never occurred gets the overall mean."""
        everywhere = self._sums.sum(axis=0) / self._counts.sum()
        seen = self._counts > 0
        means = np.tile(everywhere, (CONTEXTS, 1))
        means[seen] = self._sums[seen] / self._counts[seen, None]
        return means


def _context(drawn: int, steps: int) -> int:
    if not steps:
        return FRESH
    return NONE if not drawn else ALL if drawn >= steps else SOME


# The oracles of a cell, each played a few times: with the rate and the averages of the previous run.


OF_KINDS, OF_CONTEXTS, OF_DRAFTS = ORACLES = ("knows-kinds", "knows-contexts", "knows-drafts")
TRIES = 3
STILL = np.ones(1)
"""The clock of an oracle, which does not read it."""


def in_hindsight(
    oracles: Sequence[str], work: Work, ladder: Sequence[int], table: FloatArray, single: Served
) -> dict[str, Served]:
    """Return the best run of each of *oracles* on a closed loop, at least *single*, that at the best single depth."""
    best, seconds, batch = int(single.steps[0]), table[:, list(ladder)], work.most
    progress = work.texts.progress(ladder, best) if oracles else np.zeros((1, len(ladder)))
    found = {}
    for oracle in oracles:
        runs, foretold = [single], np.tile(progress.mean(axis=0), (CONTEXTS, 1))
        for _ in range(1 if oracle == OF_KINDS else TRIES):
            live = Live(work)
            # The progress of the whole batch in the seconds of each round, at the rate of the previous run.
            price = batch / float(table[batch, best]) * _rate(runs[-1]) / _rate(single) * seconds
            policy: AdaptivePolicy = KnowsDrafts(live, ladder, price, progress)
            if oracle == OF_KINDS:
                policy = KnowsKinds(live, ladder, seconds, _pace(work, ladder))
            elif oracle == OF_CONTEXTS:
                policy = KnowsContexts(live, ladder, price, progress, foretold=foretold)
            runs.append(serve(policy, live, ladder, table, STILL))
            if isinstance(policy, KnowsContexts):
                foretold = policy.found()
        found[oracle] = max(runs, key=_rate)
    return found


def _rate(served: Served) -> float:
    return served.tokens / served.seconds


def _pace(work: Work, ladder: Sequence[int]) -> FloatArray:
    """Return tokens per round by category and index in the ladder; 1 if a category is not in the queue."""
    kinds = len(work.texts.kinds)
    tokens = np.bincount(work.kind, work.lengths, kinds)
    rounds = (work.texts.walk(work.begin, work.end, steps) for steps in ladder)
    taken = np.stack([np.bincount(work.kind, each, kinds) for each in rounds], axis=1)
    return np.where(taken > 0, tokens[:, None] / np.maximum(taken, 1), 1.0)
