"""Expected tokens of a request's next round by steps, from the bin that its level is in.

By bin ``b`` and position ``j``, counted over rounds of any steps as far as they reached,

    h_1 = (hits_1 + K * c_b) / (reached_1 + K)               c_b: the middle of the bin, drawn towards the usual level
    h_j = (hits_j + K * FALL * h_(j-1)) / (reached_j + K)
    E_b[tokens | s] = 1 + h_1 + h_1*h_2 + ... + h_1*...*h_s

For the text of a batch, rounds of ``s`` steps take ``mean_r E_b(r)[live] / E_b(r)[s]`` times as many rounds as the live
steps: each request's progress counts over its own pace, for a slow request stays in the batch the longer.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from operator import mul

from sglang_adaptive.policy.throughput.acceptance.levels import BINS, EDGES, MIDDLES, USUAL, RequestLevels

FALL = 0.965
"""Acceptance of a position over that of the one before it, until rounds say otherwise: EAGLE-3 drafts on an H200."""
LEAST_SLOPE = 0.5
"""The least that levels are taken to say: a draft that has always been good may fail at any time. With a slope of 0.7
for ever steady load at batch 1 sees 72 switches an hour and not 44, where luck leads into a bin without trials
(simulated)."""
SATURATION = 16.0
"""A round of ``n`` requests weighs like ``n / (1 + n / 16)``: requests of one batch share their moment."""
FIRST_ROUNDS = 32
"""Rounds after which a round brings one bin of the batch up to date, and not all: so none takes long."""
_LARGEST_WEIGHT = 1e9


class AcceptanceEstimator:
    """What the batch as it stands promises."""

    def __init__(self, ladder: Sequence[int], memory_rounds: float, shrinkage: float) -> None:
        self.ladder = tuple(ladder)
        self.depth = depth = ladder[-1]
        self.shrinkage = max(shrinkage, 1e-6)
        self.levels = RequestLevels(depth)
        # Newer rounds weigh more instead of older ones less: a round then touches its own counts only.
        self._growth = 1.0 / (1.0 - 1.0 / memory_rounds)
        self._weight = 1.0
        self._hits = [[0.0] * depth for _ in range(BINS)]
        self._reached = [[0.0] * depth for _ in range(BINS)]
        self._pending: dict[int, list[list[int]]] = {}
        """Requests that are not counted yet, by steps, bin and accepted drafts."""
        self._share = 1.0
        self._rounds = 0
        self._mix: Mapping[int, float] = {bisect_right(EDGES, USUAL): 1.0}
        """Share of the batch's requests in each bin that has any, ascending."""
        self._chances: list[list[float]] = [[]] * BINS
        """Acceptance by position, by bin."""
        self._tokens: list[list[float]] = [[]] * BINS
        """Expected tokens by steps from 0, by bin."""
        self._slower: list[dict[int, list[float]]] = [{}] * BINS
        """By bin and live steps, rounds by ladder index."""
        self._refresh()

    def update(self, steps: int, counts: Sequence[int], requests: Sequence[Hashable] = ()) -> None:
        """Learn from the accepted drafts of each request in a round of *steps*.

        At zero steps *counts* are the shadow accepts, 1 or 0; they need not be of all *requests*.
        """
        size = len(counts)
        if not size:
            return
        if steps > self.depth:  # drafted before the candidates changed
            steps, counts = self.depth, [min(count, self.depth) for count in counts]
        bins = self.levels.follow(steps, counts, requests)
        pending = self._pending.get(max(1, steps))
        if pending is None:
            pending = self._pending[max(1, steps)] = [[0] * (self.depth + 1) for _ in range(BINS)]
        for bin, count in zip(bins, counts, strict=False):
            pending[bin][count] += 1
        self._share = 1.0 / (1.0 + size / SATURATION)
        self._weight *= self._growth
        now = self.levels.bins
        self._mix = {bin: now.count(bin) / len(now) for bin in sorted(set(now))}
        self._rounds += 1
        if not steps or self._rounds < FIRST_ROUNDS or self._weight > _LARGEST_WEIGHT:
            self._refresh()
        else:
            turn = self._rounds % len(self._mix)
            if not turn:
                self._find_slope()
            self._bring_up_to_date(list(self._mix)[turn])

    def slower(self, live: int) -> Sequence[float]:
        """Return by ladder index the rounds that the text of the batch takes for one round of *live* steps."""
        return self._mean([self._slower[bin].get(live) or self._make_slower(bin, live) for bin in self._mix])

    @property
    def tokens(self) -> Sequence[float]:
        """Expected tokens of a request of the batch in a round, by steps from 0."""
        return self._mean([self._tokens[bin] for bin in self._mix])

    @property
    def usual_tokens(self) -> Sequence[float]:
        """Expected tokens of a request at the usual level in a round, by steps from 0."""
        return self._tokens[bisect_right(EDGES, self.levels.usual)]

    @property
    def conditional(self) -> list[float]:
        """Acceptance by position, of the batch as it stands; 0 where the chance to get there is below any float."""
        survive, found = list(self._mix.values()), []
        for chances in zip(*(self._chances[bin] for bin in self._mix), strict=True):
            before, survive = sum(survive), [*map(mul, survive, chances)]
            found.append(sum(survive) / before if before else 0.0)
        return found

    def trials(self, position: int) -> float:
        """Return the trials of 1-based *position* behind the batch's acceptance, forgetting applied."""
        return sum(share * self._reached[bin][position - 1] for bin, share in self._mix.items()) / self._weight

    def deviation(self, position: int) -> float:
        """Return the standard deviation of the acceptance of 1-based *position*."""
        h = self.conditional[position - 1]
        return math.sqrt(max(0.0, h * (1.0 - h)) / (self.trials(position) + self.shrinkage))

    def ratio_deviation(self, first: int, second: int) -> float:
        """Return the standard deviation of ln(E[tokens | second] / E[tokens | first]).

        With ``d_j`` the relative deviation of ``h_j``, it moves by the share of ``E`` that hangs on it, times ``d_j``.
        """
        low, high = min(first, second), max(first, second)
        variance = 0.0
        for bin, share in self._mix.items():
            chances, tokens, reached = self._chances[bin], self._tokens[bin], self._reached[bin]
            most = tokens[high]
            for at in range(low, high):
                hanging, chance = share * (most - tokens[at]) / most, chances[at]
                trials = reached[at] / self._weight + self.shrinkage
                variance += hanging * hanging * (1.0 - chance) / chance / trials
        return math.sqrt(variance)

    def cap(self, trials: float) -> None:
        """Keep no more than *trials* of evidence for any bin, as after new weights."""
        self._refresh()
        for hits, reached in zip(self._hits, self._reached, strict=True):
            part = trials * self._weight / max(reached[0], trials * self._weight)
            hits[:], reached[:] = [value * part for value in hits], [value * part for value in reached]
        self._rounds = 0
        self._refresh()

    def believe_first(self, rate: float) -> None:
        """Take *rate* for the level of every request: what levels were made of was found to be wrong."""
        self.levels.set_all(rate)
        self._mix = {bisect_right(EDGES, rate): 1.0}

    def adopt(self, other: AcceptanceEstimator) -> None:
        """Begin from what *other* has counted at the positions that both have, and from its requests' levels."""
        other._refresh()
        scale, shared = self._weight / other._weight, min(self.depth, other.depth)
        for own, its in ((self._hits, other._hits), (self._reached, other._reached)):
            for row, former in zip(own, its, strict=True):
                row[:shared] = [scale * value for value in former[:shared]]
        self.levels.adopt(other.levels)
        self._mix = other._mix
        self._refresh()

    def by_level(self) -> list[dict[str, float]]:
        """Return as builtins what each bin with trials foretells of the first position, and the requests in it now."""
        rows = [
            (low, self._mix.get(bin, 0.0), self._chances[bin][0], self._reached[bin][0] / self._weight)
            for bin, low in enumerate((0.0, *EDGES))
        ]
        names = ("from_level", "share", "acceptance", "trials")
        return [dict(zip(names, row, strict=True)) for row in rows if row[1] or row[3]]

    def _refresh(self) -> None:
        """Count what is pending, and estimate every bin anew."""
        self._find_slope()
        for bin in range(BINS):
            self._bring_up_to_date(bin)
        if self._weight > _LARGEST_WEIGHT:
            for row in (*self._hits, *self._reached):
                row[:] = [value / self._weight for value in row]
            self._weight = 1.0

    def _find_slope(self) -> None:
        """Find how far levels foretell what they say: a least-squares line through the bins' first positions."""
        firsts = [(middle, h[0], r[0]) for middle, h, r in zip(MIDDLES, self._hits, self._reached, strict=True) if r[0]]
        trials = self._weight + sum(reached for _, _, reached in firsts)
        usual = (USUAL * self._weight + sum(hits for _, hits, _ in firsts)) / trials
        along = alike = self._weight  # as many trials of a slope of 1, at a distance of 1
        for middle, hits, reached in firsts:
            away = middle - usual
            along += away * (hits - usual * reached)
            alike += away * away * reached
        self._slope = min(1.0, max(LEAST_SLOPE, along / alike))

    def _bring_up_to_date(self, bin: int) -> None:
        """Count what is pending of a bin, and estimate it anew."""
        hits, reached, weight = self._hits[bin], self._reached[bin], self._weight * self._share
        for steps, pending in self._pending.items():
            counts = pending[bin]
            alive = sum(counts)
            if alive:
                for at in range(steps):
                    reached[at] += weight * alive
                    alive -= counts[at]
                    hits[at] += weight * alive
                pending[bin] = [0] * (self.depth + 1)
        usual, pull = self.levels.usual, self.shrinkage * self._weight
        h, fall, survives = usual + self._slope * (MIDDLES[bin] - usual), 1.0, 1.0
        chances, tokens = [], [1.0]
        for hit, trials in zip(hits, reached, strict=True):
            h = (hit + pull * h * fall) / (trials + pull)
            survives *= h
            chances.append(h)
            tokens.append(tokens[-1] + survives)
            fall = FALL
        self._chances[bin], self._tokens[bin], self._slower[bin] = chances, tokens, {}

    def _make_slower(self, bin: int, live: int) -> list[float]:
        tokens = self._tokens[bin]
        made = self._slower[bin][live] = [tokens[live] / tokens[steps] for steps in self.ladder]
        return made

    def _mean(self, rows: Sequence[Sequence[float]]) -> Sequence[float]:
        """Return the mean over the batch of one row for each bin of the mix."""
        if len(rows) == 1:
            return rows[0]
        shares = self._mix.values()
        return [sum(map(mul, shares, column)) for column in zip(*rows, strict=True)]
