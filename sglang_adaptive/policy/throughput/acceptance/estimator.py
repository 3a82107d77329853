"""Expected tokens of a request's next round by steps, from the bin that its level is in.

By bin ``b`` and position ``j``, counted over rounds of any steps as far as they reached,

    h_1 = (hits_1 + K * c_b) / (reached_1 + K)                       c_b: the bin's own level
    h_j = (hits_j + K * h_(j-1) * u_j / u_(j-1)) / (reached_j + K)   u_j: the same over all bins, u_j / u_(j-1) before
                                                                     any trial FALL
    E_b[tokens | s] = 1 + h_1 + h_1*h_2 + ... + h_1*...*h_s

For a batch whose requests are in bins, rounds of ``s`` steps take ``sum_r E_b(r)[live] / E_b(r)[s]`` of the rounds of
the live steps for the same text: a request's progress counts over its own pace.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from operator import add, mul

from sglang_adaptive.policy.throughput.acceptance.levels import BINS, CENTRES, RequestLevels

FALL = 0.965
SATURATION = 16.0
TABLE_MEMORIES = 40
FOLD_ROUNDS = 8
LOWEST, HIGHEST = 0.005, 0.995
PRIOR_TRIALS = 4.0
_LARGEST_WEIGHT = 1e9


class AcceptanceEstimator:
    def __init__(self, ladder: Sequence[int], memory_rounds: float, shrinkage: float, change_threshold: float) -> None:
        self.ladder = tuple(ladder)
        self.depth = depth = ladder[-1]
        self.shrinkage = max(shrinkage, 1e-6)
        self.wary = False
        self.changes = 0
        self._width = depth + 1
        self._levels = RequestLevels(depth)
        self._growth = 1.0 / (1.0 - 1.0 / (TABLE_MEMORIES * memory_rounds))
        self._weight = 1.0
        self._hits = [[0.0] * depth for _ in range(BINS)]
        self._reached = [[0.0] * depth for _ in range(BINS)]
        self._pending: dict[int, Counter[int]] = {}
        self._codes = bytes(bin * self._width for bin in range(BINS)) + bytes(256 - BINS)
        self._rounds = 0
        self._conditional: list[list[float]] = []
        self._tokens: list[list[float]] = []
        self._slower: dict[int, list[list[float]]] = {}
        self._mix = [0.0] * BINS
        self._mix[5] = 1.0
        self._estimate()

    # -- learning

    def update(self, steps: int, counts: Sequence[int], shadow: bool = False, requests: Sequence[Hashable] = ()) -> int:
        size = len(counts)
        if not size:
            return 0
        bins = self._levels.follow(steps, counts, requests)
        codes = bytes(map(add, bins.translate(self._codes), counts))
        share = 1.0 / (1.0 + size / SATURATION)
        self._weight *= self._growth
        pending = self._pending.get(steps)
        if pending is None:
            pending = self._pending[steps] = Counter()
        pending.update(codes)
        self._share = share
        now = self._levels.bins
        count = now.count
        self._mix = [count(bin) / size for bin in range(BINS)]
        self._rounds += 1
        if self._rounds % FOLD_ROUNDS == 0 or self._rounds < FOLD_ROUNDS:
            self._fold()
            self._estimate()
        return sum(counts)

    def _fold(self) -> None:
        weight, width = self._weight * self._share, self._width
        for steps, pending in self._pending.items():
            for code, times in pending.items():
                bin, accepted = divmod(code, width)
                hits, reached, mass = self._hits[bin], self._reached[bin], weight * times
                for index in range(accepted):
                    hits[index] += mass
                    reached[index] += mass
                if accepted < steps:
                    reached[accepted] += mass
        self._pending = {}
        if self._weight > _LARGEST_WEIGHT:
            for rows in (self._hits, self._reached):
                for row in rows:
                    row[:] = [value / self._weight for value in row]
            self._weight = 1.0

    def _estimate(self) -> None:
        pull = self.shrinkage * self._weight
        falls, before, all_reached = [1.0], 0.0, 0.0
        for index in range(self.depth):
            hits = sum(row[index] for row in self._hits)
            reached = sum(row[index] for row in self._reached)
            if index:
                usual = (hits + pull * FALL * before) / (reached + pull)
                falls.append(usual / max(before, LOWEST))
                before = usual
            else:
                before = (hits + pull * 0.6) / (reached + pull)
        self._conditional, self._tokens = [], []
        for hits, reached, h in zip(self._hits, self._reached, CENTRES):
            conditional, tokens, survives, total = [], [1.0], 1.0, 1.0
            for index in range(self.depth):
                h = min(HIGHEST, max(LOWEST, (hits[index] + pull * h * falls[index]) / (reached[index] + pull)))
                survives *= h
                total += survives
                conditional.append(h)
                tokens.append(total)
            self._conditional.append(conditional)
            self._tokens.append(tokens)
        self._slower = {}

    # -- what the batch as it stands promises

    def slower(self, live: int) -> list[float]:
        """Return by ladder index the rounds that the batch's text takes for one of *live* steps."""
        rows = self._slower.get(live)
        if rows is None:
            rows = [[tokens[live] / tokens[steps] for tokens in self._tokens] for steps in self.ladder]
            self._slower[live] = rows
        mix = self._mix
        return [sum(map(mul, mix, row)) for row in rows]

    @property
    def tokens(self) -> list[float]:
        mix = [(share, tokens) for share, tokens in zip(self._mix, self._tokens) if share]
        return [sum(share * tokens[steps] for share, tokens in mix) for steps in range(self._width)]

    @property
    def conditional(self) -> list[float]:
        tokens = self.tokens
        gains = [high - low for low, high in zip(tokens, tokens[1:])]
        return [min(1.0, now / before) for now, before in zip(gains, [1.0, *gains])]

    def trials(self, position: int) -> float:
        return sum(s * row[position - 1] for s, row in zip(self._mix, self._reached) if s) / self._weight

    def deviation(self, position: int) -> float:
        h = self.conditional[position - 1]
        return math.sqrt(h * (1.0 - h) / (self.trials(position) + self.shrinkage))

    def ratio_deviation(self, first: int, second: int) -> float:
        low, high = min(first, second), max(first, second)
        variance = 0.0
        for share, conditional, reached, tokens in zip(self._mix, self._conditional, self._reached, self._tokens):
            if share:
                own = 0.0
                for index in range(low, high):
                    h = conditional[index]
                    hanging = (tokens[high] - tokens[index]) / tokens[high]
                    own += hanging * hanging * (1.0 - h) / h / (reached[index] / self._weight + self.shrinkage)
                variance += share * share * own
        return math.sqrt(variance)

    @property
    def rising(self) -> bool:
        return False

    @property
    def promising(self) -> bool:
        return False

    def cap(self, trials: float) -> None:
        """Keep no more than *trials* of evidence for any bin."""
        self._fold()
        for hits, reached in zip(self._hits, self._reached):
            part = trials * self._weight / max(reached[0], trials * self._weight)
            hits[:], reached[:] = [value * part for value in hits], [value * part for value in reached]
        self._estimate()

    def believe_first(self, rate: float, trials: float) -> None:
        self.cap(trials)

    def adopt(self, other: AcceptanceEstimator) -> None:
        other._fold()
        scale, shared = self._weight / other._weight, min(self.depth, other.depth)
        for own, its in ((self._hits, other._hits), (self._reached, other._reached)):
            for row, former in zip(own, its):
                row[:shared] = [scale * value for value in former[:shared]]
        self._mix = other._mix[:]
        self._levels.usual = other._levels.usual
        self._estimate()
