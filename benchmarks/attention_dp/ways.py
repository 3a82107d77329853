"""Ways to come to one depth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.attention_dp.rank import Believer, Rank
from sglang_adaptive.policy.throughput.outlook import follow
from sglang_adaptive.policy.vote.agree import MARGIN, agree, leader, probe_of
from sglang_adaptive.simulate.acceptance import FloatArray
from sglang_adaptive.simulate.real.texts import Texts

Way = Callable[[Sequence[Rank], Sequence[Believer], int], int]
"""Returns the depth of the coming round; the last argument is the live one."""
DEPTHS, LAUNCH = (0, 1, 2, 3, 5, 7), 3
RATE_MEMORY = 50.0
"""Rounds of the rate that seconds are priced at by who knows the drafts."""


def vote(ranks: Sequence[Rank], believers: Sequence[Believer], live: int) -> int:
    """The vote of ``policy/vote``."""
    return agree(_rows(ranks, believers, live), DEPTHS, LAUNCH)


def most_tokens(ranks: Sequence[Rank], believers: Sequence[Believer], live: int) -> int:
    """The depth with most tokens of all ranks over the time at the largest batch, by the same margin."""
    times = max(zip(ranks, believers, strict=True), key=lambda pair: pair[0].requests)[1].policy
    seconds = times.prices(max(rank.requests for rank in ranks), DEPTHS[-1]).seconds
    tokens = np.zeros(DEPTHS[-1] + 1)
    for rank, believer in zip(ranks, believers, strict=True):
        if rank.requests:
            tokens += rank.requests * np.array(believer.policy.prices(rank.requests, DEPTHS[-1]).tokens)
    best = max(DEPTHS, key=lambda s: tokens[s] / seconds[s])
    gain = tokens[best] / seconds[best] * seconds[live] / tokens[live]
    return best if gain > 1.0 + MARGIN / 1000 else live


def minimum(ranks: Sequence[Rank], believers: Sequence[Believer], live: int) -> int:
    """The fewest steps that any rank would run alone, by the same beliefs and margin."""
    return min(_wishes(ranks, believers, live))


def majority(ranks: Sequence[Rank], believers: Sequence[Believer], live: int) -> int:
    """What most ranks would run alone; of equally many the fewest steps."""
    wishes = Counter(_wishes(ranks, believers, live))
    return min(wishes, key=lambda steps: (-wishes[steps], steps))


def largest(ranks: Sequence[Rank], believers: Sequence[Believer], live: int) -> int:
    """What the rank with most requests would run alone."""
    return agree([max(_rows(ranks, believers, live), key=lambda row: row[0])], DEPTHS, LAUNCH)


def minimum_of_policies(ranks: Sequence[Rank], believers: Sequence[Believer], live: int) -> int:
    """The fewest steps that any rank's policy chooses, with its own hysteresis."""
    return min(b.policy.get_steps_for_batch(r.requests) for r, b in zip(ranks, believers, strict=True) if r.requests)


class KnowsDrafts:
    """Knows how many drafts of every request get accepted in the coming round, and in all later ones.

    A round is worth the progress that it brings each request over the pace of its own text, less its seconds at the
    rate of progress so far.
    """

    def __init__(self, table: FloatArray, texts: Texts, steps: int) -> None:
        """Progress is counted in rounds of *steps*."""
        self._table, self._progress = table[:, list(DEPTHS)], texts.progress(DEPTHS, steps)
        self._brought = self._seconds = 0.0

    def __call__(self, ranks: Sequence[Rank], believers: Sequence[Believer], live: int) -> int:
        brought = self._progress[[at for rank in ranks for at in rank.positions]].sum(axis=0)
        seconds = self._table[max(rank.requests for rank in ranks)]
        worth = brought / seconds
        if self._seconds:
            worth = brought - self._brought / self._seconds * seconds
        at = int(np.argmax(worth))
        keep = 1.0 - 1.0 / RATE_MEMORY
        self._brought, self._seconds = keep * self._brought + brought[at], keep * self._seconds + seconds[at]
        return DEPTHS[at]


class VoteWithProbes:
    """The vote as it is served: the rank with most requests may take a round for a probe, in its policy's budget."""

    def __init__(self) -> None:
        self._agreed = LAUNCH

    def __call__(self, ranks: Sequence[Rank], believers: Sequence[Believer], live: int) -> int:
        rows = _rows(ranks, believers, self._agreed)
        first = leader(rows)
        assert first is not None, "there is a batch"
        self._agreed = running = agree(rows, DEPTHS, LAUNCH)
        probe = probe_of(rows[first], DEPTHS)
        if probe is not None:
            running = probe
        for at, believer in enumerate(believers):
            follow(believer.policy, rows[first][0], self._agreed, running, at == first)
        return running


def static(steps: int) -> Way:
    """Return the way that always runs *steps*."""
    return lambda ranks, believers, live: steps


def _rows(ranks: Sequence[Rank], believers: Sequence[Believer], live: int) -> list[list[int]]:
    return [believer.row(rank.requests, live) for rank, believer in zip(ranks, believers, strict=True)]


def _wishes(ranks: Sequence[Rank], believers: Sequence[Believer], live: int) -> list[int]:
    return [agree([row], DEPTHS, LAUNCH) for row in _rows(ranks, believers, live) if row[0]]
