"""Expected tokens of a request's next round by steps, from the bin that its level is in.

By bin ``b`` and position ``j``, counted over rounds of any steps as far as they reached,

    h_1 = (hits_1 + K * c_b) / (reached_1 + K)                        c_b: the middle of the bin, or nearer to u_1
    h_j = (hits_j + K * h_(j-1) * u_j / u_(j-1)) / (reached_j + K)    u_j: the same over all bins, which falls by FALL
                                                                      a position until trials say otherwise
    E_b[tokens | s] = 1 + h_1 + h_1*h_2 + ... + h_1*...*h_s

For the text of a batch, rounds of ``s`` steps take ``mean_r E_b(r)[live] / E_b(r)[s]`` times as many rounds as the live
steps: each request's progress counts over its own pace, for a slow request stays in the batch the longer.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from operator import mul

from sglang_adaptive.policy.throughput.acceptance.levels import BINS, EDGES, MIDDLES, USUAL, RequestLevels

FALL = 0.965
"""Acceptance of a position over that of the one before it, until rounds say otherwise: EAGLE-3 drafts on an H200."""
SATURATION = 16.0
"""A round of ``n`` requests weighs like ``n / (1 + n / 16)``: requests of one batch share their moment."""
FOLD_ROUNDS = 8
"""Rounds between two estimates, once the first ones are in; a round then costs a third. Shadow accepts, which
come in few rounds, are taken in at once."""
SLOPE_PRIOR, LEAST_SLOPE = 1.0, 0.3
"""What speaks for bins being what their middles say before any trial: 25 trials at a distance of 0.2; and the
least that levels are taken to say, for a draft that has always been good may fail at any time."""
LOWEST, HIGHEST = 0.005, 0.995
"""Bounds of an acceptance: no draft is accepted, or rejected, for ever."""
_LARGEST_WEIGHT = 1e9


class AcceptanceEstimator:
    """What the batch as it stands promises; a bin is estimated when it is first asked for after a fold."""

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
        self._estimate()

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
        self._mix = {bin: now.count(bin) / len(now) for bin in range(BINS) if bin in now}
        self._rounds += 1
        if not steps or self._rounds % FOLD_ROUNDS == 0 or self._rounds < FOLD_ROUNDS:
            self._fold()
            self._estimate()

    def slower(self, live: int) -> Sequence[float]:
        """Return by ladder index the rounds that the text of the batch takes for one round of *live* steps."""
        return self._mean([self._slower.get((bin, live)) or self._make_slower(bin, live) for bin in self._mix])

    @property
    def tokens(self) -> Sequence[float]:
        """Expected tokens of a request of the batch in a round, by steps from 0."""
        return self._mean([self._of(bin)[1] for bin in self._mix])

    @property
    def usual_tokens(self) -> Sequence[float]:
        """Expected tokens of a request at the usual level in a round, by steps from 0."""
        return self._of(bisect_right(EDGES, self.levels.usual))[1]

    @property
    def conditional(self) -> list[float]:
        """Acceptance by position, of the batch as it stands."""
        tokens = self.tokens
        gains = [1.0, *(high - low for low, high in pairwise(tokens))]
        return [now / before if before > 0.0 else LOWEST for before, now in pairwise(gains)]

    def trials(self, position: int) -> float:
        """Return the trials of 1-based *position* behind the batch's acceptance, forgetting applied."""
        return sum(share * self._reached[bin][position - 1] for bin, share in self._mix.items()) / self._weight

    def deviation(self, position: int) -> float:
        """Return the standard deviation of the acceptance of 1-based *position*."""
        h = self.conditional[position - 1]
        return math.sqrt(h * (1.0 - h) / (self.trials(position) + self.shrinkage))

    def ratio_deviation(self, first: int, second: int) -> float:
        """Return the standard deviation of ln(E[tokens | second] / E[tokens | first]).

        With ``d_j`` the relative deviation of ``h_j``, it moves by the share of ``E`` that hangs on it, times ``d_j``.
        """
        low, high = min(first, second), max(first, second)
        variance = 0.0
        for bin, share in self._mix.items():
            chances, tokens = self._of(bin)
            reached, most = self._reached[bin], tokens[high]
            for at in range(low, high):
                hanging, chance = share * (most - tokens[at]) / most, chances[at]
                trials = reached[at] / self._weight + self.shrinkage
                variance += hanging * hanging * (1.0 - chance) / chance / trials
        return math.sqrt(variance)

    def learnable_deviation(self, seen: int, steps: int, requests: int) -> float:
        """Return how far ln E[tokens | steps] may move by drafting *steps* for so many *requests*; *seen* are drafted.

        A deviation ``d`` of ``k`` trials that gains ``m`` more is expected to move by ``d * sqrt(m / (m + k))``.
        """
        if steps <= seen:
            return 0.0
        share = requests / (requests + self.trials(steps) + self.shrinkage)
        return self.ratio_deviation(seen, steps) * math.sqrt(share)

    def cap(self, trials: float) -> None:
        """Keep no more than *trials* of evidence for any bin, as after new weights."""
        self._fold()
        for hits, reached in zip(self._hits, self._reached, strict=True):
            part = trials * self._weight / max(reached[0], trials * self._weight)
            hits[:], reached[:] = [value * part for value in hits], [value * part for value in reached]
        self._estimate()

    def believe_first(self, rate: float) -> None:
        """Take *rate* for the level of every request: what levels were made of was found to be wrong."""
        self.levels.set_all(rate)
        self._mix = {bisect_right(EDGES, rate): 1.0}

    def adopt(self, other: AcceptanceEstimator) -> None:
        """Begin from what *other* has counted at the positions that both have, and from its requests' levels."""
        other._fold()
        scale, shared = self._weight / other._weight, min(self.depth, other.depth)
        for own, its in ((self._hits, other._hits), (self._reached, other._reached)):
            for row, former in zip(own, its, strict=True):
                row[:shared] = [scale * value for value in former[:shared]]
        self.levels.adopt(other.levels)
        self._mix = other._mix
        self._estimate()

    def by_level(self) -> list[dict[str, float]]:
        """Return as builtins what each bin with trials foretells of the first position, and the requests in it now."""
        mix, weight = self._mix, self._weight
        rows = [(low, bin, mix.get(bin, 0.0), self._reached[bin][0]) for bin, low in enumerate((0.0, *EDGES))]
        return [
            {"from_level": low, "share": share, "acceptance": self._of(bin)[0][0], "trials": reached / weight}
            for low, bin, share, reached in rows
            if reached or share
        ]

    def _fold(self) -> None:
        """Count what is pending."""
        weight = self._weight * self._share
        for steps, pending in self._pending.items():
            for counts, hits, reached in zip(pending, self._hits, self._reached, strict=True):
                alive = sum(counts)
                for at in range(steps if alive else 0):
                    reached[at] += weight * alive
                    alive -= counts[at]
                    hits[at] += weight * alive
        self._pending.clear()
        if self._weight > _LARGEST_WEIGHT:
            for row in (*self._hits, *self._reached):
                row[:] = [value / self._weight for value in row]
            self._weight = 1.0

    def _estimate(self) -> None:
        """Find out what the bins have in common, and forget what was made of each."""
        self._pull = pull = self.shrinkage * self._weight
        self._falls, before = list[float](), 0.0
        """Acceptance of each position over that of the one before it, over all bins."""
        all_hits, all_reached = (list(map(sum, zip(*rows, strict=True))) for rows in (self._hits, self._reached))
        for at, (hits, reached) in enumerate(zip(all_hits, all_reached, strict=True)):
            usual = (hits + pull * (FALL * before if at else USUAL)) / (reached + pull)
            self._falls.append(usual / max(before, LOWEST) if at else 1.0)
            before = usual
        self._centre = self._centres(all_hits[0], all_reached[0])
        self._estimates: dict[int, tuple[list[float], list[float]]] = {}
        """By bin, acceptance by position and expected tokens by steps."""
        self._slower: dict[tuple[int, int], list[float]] = {}
        """By bin and live steps, rounds by ladder index."""

    def _of(self, bin: int) -> tuple[list[float], list[float]]:
        """Return a bin's acceptance by position and its expected tokens by steps."""
        found = self._estimates.get(bin)
        if found is None:
            h, pull, chances, tokens = self._centre[bin], self._pull, [], [1.0]
            survives = 1.0
            for hits, reached, fall in zip(self._hits[bin], self._reached[bin], self._falls, strict=True):
                h = (hits + pull * h * fall) / (reached + pull)
                h = LOWEST if h < LOWEST else min(h, HIGHEST)
                survives *= h
                chances.append(h)
                tokens.append(tokens[-1] + survives)
            found = self._estimates[bin] = chances, tokens
        return found

    def _make_slower(self, bin: int, live: int) -> list[float]:
        tokens = self._of(bin)[1]
        made = self._slower[bin, live] = [tokens[live] / tokens[steps] for steps in self.ladder]
        return made

    def _mean(self, rows: Sequence[Sequence[float]]) -> Sequence[float]:
        """Return the mean over the batch of one row for each bin of the mix."""
        if len(rows) == 1:
            return rows[0]
        shares = self._mix.values()
        return [sum(map(mul, shares, column)) for column in zip(*rows, strict=True)]

    def _centres(self, all_hits: float, all_reached: float) -> list[float]:
        """Return what each bin is taken to stand for: its middle, drawn to the usual as far as levels foretell little.

        The slope is that of a least-squares line through the bins' first positions; the arguments are of all bins'.
        """
        weight = self._weight
        usual = (all_hits + USUAL * weight) / (all_reached + weight)
        along = alike = SLOPE_PRIOR * weight
        for middle, hits, reached in zip(MIDDLES, self._hits, self._reached, strict=True):
            away = middle - usual
            along += away * (hits[0] - usual * reached[0])
            alike += away * away * reached[0]
        slope = min(1.0, max(LEAST_SLOPE, along / alike))
        lately = self.levels.usual
        return [lately + slope * (middle - lately) for middle in MIDDLES]
