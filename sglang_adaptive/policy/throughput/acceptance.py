"""Expected tokens of a request's next round by steps, learned from accepted drafts.

A request's *level* is an exponential average of its trials: a draft that was reached counts 1 if accepted, else 0. Each
bin of levels counts, by position, how often a draft was reached and accepted (docs/how-it-decides.md). The text of a
batch takes ``mean_r E_r[live] / E_r[s]`` times as many rounds at ``s`` steps as at the live steps: each request's
progress is relative to its own pace, because a slow request stays in the batch longer.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from operator import mul
from typing import Any

# Levels.
GAIN, SHADOW_GAIN = 0.1, 0.3
"""Weight of the latest trial in a level; on recorded text 0.1 forecasts better than 0.05 or 0.2. Shadow trials are few:
with 0.1, four requests whose text has become easy stay at zero steps for 100 rounds, with 0.3 for 30 (simulated)."""
EDGES = (0.15, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.94)
"""Levels that separate the bins."""
BINS = len(EDGES) + 1
MIDDLES = tuple((low + high) / 2.0 for low, high in zip((0.05, *EDGES), (*EDGES, 0.98), strict=True))
USUAL, USUAL_GAIN = EDGES[len(EDGES) // 2], 0.02
"""The usual level, which new requests start with, before any was observed, and the weight of one request's level."""
_GRID = 255
_BIN_OF = bytes(bisect_right(EDGES, level / _GRID) for level in range(_GRID + 1))

# Counts by bin and position.
FALL = 0.965
"""Acceptance of a position over that of the one before it, until rounds show otherwise: EAGLE-3 drafts on an H200."""
SATURATION = 16.0
"""A round of ``n`` requests weighs like ``n / (1 + n / 16)``, because requests of one round are not independent."""
EVERY = 4
"""After the first ones, rounds until estimates are updated, and then of at most as many of the batch's bins: with
rounds of 2 ms, decisions take a share of them."""
_LARGEST_WEIGHT = 1.0 / math.ulp(1.0)

# Changes.
RECENT = 12.0
"""Trials of a position after which a recent one counts for 1/e; twice as many of shadow and verified drafts in all."""
PROOF = 3.0
"""|z| that proves a change, or shadow acceptance wrong. Without the first, acceptance that rises beyond the live steps
stays unnoticed for thousands of rounds (emulated)."""

# Trust in shadow acceptance.
TELLING = 0.25
"""Rate that shadow and verified drafts must both exceed before shadow acceptance is trusted again: a check that never
finds a hit agrees with every bad draft."""


class AcceptanceEstimator:
    """Estimates the tokens of the current batch."""

    def __init__(self, ladder: Sequence[int], memory_rounds: float, shrinkage: float) -> None:
        self.ladder = tuple(ladder)
        self.depth = depth = ladder[-1]
        self.shrinkage = max(shrinkage, 1e-6)
        self.levels = RequestLevels(depth)
        # Newer rounds get more weight, instead of older ones less, so a round changes only its own counts.
        self._growth = 1.0 / (1.0 - 1.0 / memory_rounds)
        self._weight = 1.0
        self._hits = [[0.0] * depth for _ in range(BINS)]
        self._reached = [[0.0] * depth for _ in range(BINS)]
        self._pending: defaultdict[int, list[tuple[bytes, Sequence[int]]]] = defaultdict(list)
        """Rounds not counted yet, by steps: the bin and the accepted drafts of each request."""
        self._share = 1.0
        self._rounds = 0
        self._recent = [[0.0, 0.0, 0.0] for _ in range(depth)]
        """By position, of recent trials: hits beyond those expected, their variance, and the number of trials."""
        self._bins = b""
        """The bin of each request of the latest round, as ``_mix`` has it."""
        self._mix: Mapping[int, float] = {bisect_right(EDGES, USUAL): 1.0}
        """Share of the batch's requests in each nonempty bin, ascending."""
        self._chances: list[list[float]] = [[]] * BINS
        self._tokens: list[list[float]] = [[]] * BINS
        self._slower: list[dict[int, list[float]]] = [{}] * BINS
        """By bin: acceptance by position, expected tokens by steps from 0, and by live steps its part of ``slower``."""
        self._means: dict[int | None, Sequence[float]] = {}
        """Of the current mix: :meth:`slower` by live steps, and for None ``tokens``."""
        self._refresh(range(BINS))

    # -- learning --

    def update(self, steps: int, counts: Sequence[int], requests: Sequence[Hashable] = ()) -> None:
        """Learn from the accepted drafts of each request; at zero steps from shadow accepts, maybe not of all."""
        size = len(counts)
        if not size:
            return
        if steps > self.depth:  # drafted before the candidates changed
            steps, counts = self.depth, [min(count, self.depth) for count in counts]
        self._pending[max(1, steps)].append((self.levels.update(steps, counts, requests), counts))
        self._share = 1.0 / (1.0 + size / SATURATION)
        self._weight *= self._growth
        self._rounds += 1
        bins = self.levels.bins
        if bins != self._bins:
            self._bins = bins
            self._mix = {bin: bins.count(bin) / len(bins) for bin in sorted(set(bins))}
            self._means = {}
        if self._rounds < EVERY or not steps or self._weight > _LARGEST_WEIGHT:
            self._refresh(range(BINS))  # also at zero steps, where few rounds have a shadow accept
        elif not self._rounds % EVERY:
            turns = -(-len(self._mix) // EVERY)
            self._refresh(list(self._mix)[self._rounds // EVERY % turns :: turns])

    def doubt(self, first: int = 0) -> None:
        """Keep at most *shrinkage* trials per bin at each position from index *first* on, as after a weight update."""
        most = self.shrinkage * self._weight
        for hits, reached in zip(self._hits, self._reached, strict=True):
            for at in range(first, self.depth):
                if reached[at] > most:
                    hits[at] *= most / reached[at]
                    reached[at] = most

    def set_level(self, level: float) -> None:
        """Set the level of every request, because shadow acceptance proved wrong."""
        self.levels.set_all(level)
        self._bins, self._mix, self._means = b"", {bisect_right(EDGES, level): 1.0}, {}

    def adopt(self, other: AcceptanceEstimator) -> None:
        """Start from the counts of *other* at the positions that both have, and from its requests' levels."""
        other._refresh(range(BINS))
        scale, shared = self._weight / other._weight, min(self.depth, other.depth)
        for own, its in ((self._hits, other._hits), (self._reached, other._reached)):
            for row, former in zip(own, its, strict=True):
                row[:shared] = [scale * value for value in former[:shared]]
        self.levels.adopt(other.levels)
        self._bins, self._mix = other._bins, other._mix
        self._refresh(range(BINS))

    # -- estimates --

    def slower(self, live: int) -> Sequence[float]:
        """Return, by ladder index, the rounds with the text of one round at *live* steps."""
        found = self._means.get(live)
        if found is None:
            rows = [self._slower[bin].get(live) or self._make_slower(bin, live) for bin in self._mix]
            found = self._means[live] = self._mean(rows)
        return found

    @property
    def tokens(self) -> Sequence[float]:
        """Expected tokens per request of the batch in a round, by steps from 0."""
        found = self._means.get(None)
        if found is None:
            found = self._means[None] = self._mean([self._tokens[bin] for bin in self._mix])
        return found

    @property
    def conditional(self) -> list[float]:
        """Acceptance of the current batch by position; 0 if the probability of reaching it underflows."""
        survive, found = list(self._mix.values()), []
        for chances in zip(*(self._chances[bin] for bin in self._mix), strict=True):
            before, survive = sum(survive), [*map(mul, survive, chances)]
            found.append(sum(survive) / before if before else 0.0)
        return found

    def trials(self, position: int) -> float:
        """Return the trials behind the batch's acceptance at 1-based *position*, after forgetting."""
        return sum(share * self._reached[bin][position - 1] for bin, share in self._mix.items()) / self._weight

    def deviation(self, position: int) -> float:
        """Return the standard deviation of the acceptance of 1-based *position*."""
        h = self.conditional[position - 1]
        return math.sqrt(max(0.0, h * (1.0 - h)) / (self.trials(position) + self.shrinkage))

    def ratio_deviation(self, first: int, second: int) -> float:
        """Return the standard deviation of ln(E[tokens | second] / E[tokens | first])."""
        low, high = min(first, second), max(first, second)
        variance = 0.0
        for bin, share in self._mix.items():
            chances, tokens, reached = self._chances[bin], self._tokens[bin], self._reached[bin]
            most = tokens[high]
            for at in range(low, high):  # its relative deviation, times the share of tokens that hang on it
                hanging, chance = share * (most - tokens[at]) / most, chances[at]
                trials = reached[at] / self._weight + self.shrinkage
                variance += hanging * hanging * (1.0 - chance) / chance / trials
        return math.sqrt(variance)

    def by_position(self) -> list[dict[str, Any]]:
        """Return each position's acceptance, its standard deviation and the trials behind it, as builtins."""
        return [
            {"position": at, "probability": h, "deviation": self.deviation(at), "trials": self.trials(at)}
            for at, h in enumerate(self.conditional, 1)
        ]

    # -- internals --

    def _refresh(self, bins: Sequence[int]) -> None:
        """Count the pending requests, and update the estimates of *bins*."""
        self._count()
        if not self._rounds % EVERY:
            self._find_change()
        for bin in bins:
            self._estimate(bin)
        if self._weight > _LARGEST_WEIGHT:
            for row in (*self._hits, *self._reached):
                row[:] = [value / self._weight for value in row]
            self._weight = 1.0
        self._means = {}

    def _count(self) -> None:
        share = self._share
        for steps, rounds in self._pending.items():
            counts: defaultdict[int, list[int]] = defaultdict(lambda: [0] * (self.depth + 1))
            tally = Counter(chain.from_iterable(zip(*each, strict=False) for each in rounds))
            for (bin, accepted), requests in tally.items():
                counts[bin][accepted] = requests
            for bin, ended in counts.items():
                alive, weight = sum(ended), self._weight * share
                hits, reached, known = self._hits[bin], self._reached[bin], self._chances[bin]
                for at in range(steps):
                    if not alive:
                        break
                    trials, alive = share * alive, alive - ended[at]
                    reached[at] += self._weight * trials
                    hits[at] += weight * alive
                    if known:
                        recent, chance = self._recent[at], known[at]
                        fade = math.exp(-trials / RECENT)
                        recent[0] = recent[0] * fade + share * alive - trials * chance
                        recent[1] = recent[1] * fade + trials * chance * (1.0 - chance)
                        recent[2] = recent[2] * fade + trials
        self._pending.clear()

    def _estimate(self, bin: int) -> None:
        hits, reached = self._hits[bin], self._reached[bin]
        pull, h, fall, survives = self.shrinkage * self._weight, MIDDLES[bin], 1.0, 1.0
        chances, tokens = [], [1.0]
        for hit, trials in zip(hits, reached, strict=True):
            h = (hit + pull * h * fall) / (trials + pull)
            survives *= h
            chances.append(h)
            tokens.append(tokens[-1] + survives)
            fall = FALL
        self._chances[bin], self._tokens[bin], self._slower[bin] = chances, tokens, {}

    def _find_change(self) -> None:
        """Doubt the first position whose recent trials its estimate does not explain, and deeper ones."""
        for at, (beyond, variance, trials) in enumerate(self._recent):
            if 2.0 * trials < RECENT or beyond**2 <= PROOF**2 * variance:
                continue
            behind = sum(row[at] for row in self._reached) / self._weight + self.shrinkage
            h = sum(share * self._chances[bin][at] for bin, share in self._mix.items())
            if beyond**2 > PROOF**2 * (variance + trials**2 * h * (1.0 - h) / behind):
                self.doubt(at)
                for recent in self._recent[at:]:
                    recent[:] = [0.0, 0.0, 0.0]
                return

    def _make_slower(self, bin: int, live: int) -> list[float]:
        tokens = self._tokens[bin]
        made = self._slower[bin][live] = [tokens[live] / tokens[steps] for steps in self.ladder]
        return made

    def _mean(self, rows: Sequence[Sequence[float]]) -> Sequence[float]:
        """Return the batch's mean of one row per bin of the mix."""
        if len(rows) == 1:
            return rows[0]
        shares = self._mix.values()
        return [sum(map(mul, shares, column)) for column in zip(*rows, strict=True)]


class RequestLevels:
    """Levels of the requests in the batch, in the order of the latest round."""

    def __init__(self, depth: int) -> None:
        """*depth* is the largest number of steps."""
        self._next = [[_moved(steps, level) for level in range(_GRID + 1)] for steps in range(depth + 1)]
        self._requests: list[Hashable] = []
        self._now = self._before = b""
        """Levels on a grid of 256: after the latest round, and before it."""
        self.usual = USUAL

    @property
    def bins(self) -> bytes:
        """The current bin of each request of the latest round."""
        return self._now.translate(_BIN_OF)

    def update(self, steps: int, counts: Sequence[int], requests: Sequence[Hashable]) -> bytes:
        """Learn from a round as ``AcceptanceEstimator.update``; return its requests' bins when its steps were chosen.

        With overlap scheduling that is before the previous result arrives. Without *requests*, the position in the
        batch identifies a request; *counts* may be shorter than *requests*.
        """
        requests = requests or range(len(counts))
        if requests != self._requests:
            self._align(list(requests))
        bins, now = self._before.translate(_BIN_OF), self._now
        moved = self._next[steps]
        self._before = now
        seen = bytes([moved[level][count] for level, count in zip(now, counts, strict=False)])
        self._now = now = seen + now[len(seen) :]
        mean = sum(now) / (_GRID * len(now))
        self.usual += min(1.0, USUAL_GAIN * len(now)) * (mean - self.usual)
        return bins

    def set_all(self, level: float) -> None:
        self.usual = level
        self._now = self._before = bytes([round(level * _GRID)]) * len(self._now)

    def adopt(self, other: RequestLevels) -> None:
        self.usual, self._requests, self._now, self._before = other.usual, other._requests, other._now, other._before

    def _align(self, requests: list[Hashable]) -> None:
        usual = round(self.usual * _GRID)
        for name in ("_now", "_before"):
            known = dict(zip(self._requests, getattr(self, name), strict=True))
            setattr(self, name, bytes([known.get(request, usual) for request in requests]))
        self._requests = requests


def _moved(steps: int, level: int) -> bytes:
    """Return the new level after a round of *steps* by accepted drafts; at 0 steps by the shadow accept."""
    drafted, gain = (steps, GAIN) if steps else (1, SHADOW_GAIN)
    moved, value = bytearray(), level / _GRID
    for accepted in range(drafted + 1):
        ended = value if accepted == drafted else value * (1.0 - gain)
        moved.append(round(ended * _GRID))
        value += gain * (1.0 - value)
    return bytes(moved)


class ShadowTrust:
    """Whether to trust shadow acceptance: a z-test of two proportions, over the latest trials of either kind.

    At zero steps the first draft is only compared with the text (``RoundObservation.shadow_accepts``); at other steps
    it is verified. Around a change between the two, both apply to the same text. If they differ, verified drafts count.
    """

    def __init__(self) -> None:
        self._shadow, self._verified = [0.0, 0.0], [0.0, 0.0]
        """Hits and trials of the first draft."""
        self.believed = True

    @property
    def verified_rate(self) -> float:
        """Acceptance of the first position in the latest verified rounds."""
        return _rate(*self._verified)

    def add(self, accepted: Sequence[int], verified: bool) -> bool:
        """Add accepted drafts, or shadow accepts (1 or 0), by request; return whether they prove shadow ones wrong."""
        one, other = (self._verified, self._shadow) if verified else (self._shadow, self._verified)
        trials = len(accepted) / (1.0 + len(accepted) / SATURATION)
        fade = math.exp(-trials / (2.0 * RECENT))
        other[0] *= fade
        other[1] *= fade
        if accepted:
            one[0] = one[0] * fade + trials * (1.0 - accepted.count(0) / len(accepted))
            one[1] = one[1] * fade + trials
        if not min(one[1], other[1]):
            return False
        common = _rate(one[0] + other[0], one[1] + other[1])
        rates = _rate(*one), _rate(*other)
        z = abs(rates[0] - rates[1]) / math.sqrt(common * (1.0 - common) * (1.0 / one[1] + 1.0 / other[1]))
        if self.believed and z > PROOF:
            self.believed = False
            return True
        self.believed = self.believed or (z < PROOF and min(rates) > TELLING)
        return False


def _rate(hits: float, trials: float) -> float:
    """Return the share of hits with one hit and one miss added, because no sample proves a 0 or a 1."""
    return (hits + 1.0) / (trials + 2.0)
