"""Expected tokens of a round by steps, learnt from the rounds of any steps.

    E[tokens | r_i] = E[tokens | r_(i-1)] * q_i           q_i = (A_i + K * x_i) / (B_i + K)

``r_1 < r_2 < ...`` are the positive candidate steps. ``A_i`` and ``B_i`` are the rounds that ``r_(i-1)`` and ``r_i``
would have taken for the same text (``recut``), over the rounds of at least ``r_i`` steps, forgotten exponentially.
``x_i`` is what is expected without them: a draft that is accepted with one probability at every position, chosen so
that ``r_(i-1)`` brings what it brings, times ``exp(b_i)``, which is how far that was off when ``r_i`` last ran.

A round of ``n`` requests weighs like ``n / (1 + n / SATURATION)`` of them: requests of one batch share their moment.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from sglang_adaptive.policy.throughput.acceptance.change import ChangeDetector
from sglang_adaptive.policy.throughput.acceptance.geometric import Geometric
from sglang_adaptive.policy.throughput.acceptance.recut import Recut

PRIOR_ACCEPTANCE = 0.6
PRIOR_TRIALS = 2.0
SATURATION = 16.0
FALL_PER_STEP = 0.965
STEP_BIAS = -0.009
SPREAD = 0.04
BELIEVE_ROUNDS = 8
BIAS_MEMORIES = 16
_LARGEST_WEIGHT = 1e9


class AcceptanceEstimator:
    """Expected tokens by steps; ``conditional`` is the acceptance of each position as the rounds that ran show it."""

    def __init__(self, ladder: Sequence[int], memory_rounds: float, shrinkage: float, change_threshold: float) -> None:
        self.ladder = tuple(ladder)
        self.rungs = tuple(steps for steps in ladder if steps)
        self.depth = depth = self.rungs[-1]
        self.wary = False
        self.changes = 0
        self.shrinkage = max(shrinkage, 1e-6)
        self._memory = memory_rounds
        self._growth = 1.0 / (1.0 - 1.0 / memory_rounds)
        self._weight = 1.0
        self._recut = Recut(self.rungs)
        self._expect = [Geometric(low, high) for low, high in zip(self.rungs, self.rungs[1:])]
        self._first = 1.0 + sum(PRIOR_ACCEPTANCE**position for position in range(1, self.rungs[0] + 1))
        self._bias = [STEP_BIAS * (high - low) for low, high in zip(self.rungs, self.rungs[1:])]
        self._bias_rounds = [4.0] * len(self._bias)
        self._hits, self._reached = [0.0] * depth, [0.0] * depth
        self._longer, self._shorter = [0.0] * len(self.rungs), [0.0] * len(self.rungs)
        self._rounds = 0
        self._estimate()
        self._detector = ChangeDetector(self.conditional, change_threshold)

    def update(
        self,
        steps: int,
        counts: Sequence[int],
        shadow: bool = False,
        requests: Sequence[Hashable] = (),
    ) -> int:
        """Learn from a round drafted with *steps* >= 1; return the accepted drafts of all its requests."""
        size = len(counts)
        if not size:
            return 0
        self._weight *= self._growth
        share = 1.0 / (1.0 + size / SATURATION)
        weight = self._weight * share
        detector = self._detector
        detector.mark(self._counts())
        accepted, up, far, down = self._count(steps, counts, weight)
        if shadow:
            rate = (accepted + 1e-9) / size
            self._longer[0] += weight * size * sum(rate**j for j in range(self.rungs[0] + 1))
            self._shorter[0] += weight * size
        else:
            last = size + accepted
            for index, rounds in enumerate(self._recut.count(steps, counts, requests)):
                self._longer[index] += weight * last
                self._shorter[index] += weight * rounds
                last = rounds
        dropped = detector.step(up * share, far * share, down * share, self.wary, scarce=shadow)
        if dropped is not None:
            self._drop(dropped)
        self._estimate()
        self._rounds += 1
        if self._rounds % BELIEVE_ROUNDS == 0:
            if not shadow:
                self._learn_bias(steps)
            detector.believe(self.conditional)
        if self._weight > _LARGEST_WEIGHT:
            self._rescale()
        return accepted

    @property
    def rising(self) -> bool:
        return self._detector.rising

    @property
    def promising(self) -> bool:
        return self._detector.promising

    def trials(self, position: int) -> float:
        return self._reached[position - 1] / self._weight

    def deviation(self, position: int) -> float:
        h = self.conditional[position - 1]
        behind = self.shrinkage if position > 1 else PRIOR_TRIALS
        return math.sqrt(h * (1.0 - h) / (self.trials(position) + behind + 1.0))

    def ratio_variance(self, index: int) -> float:
        """Variance of ln q of rung *index*."""
        ratio = self.ratios[index]
        trials = self._shorter[index] / self._weight
        behind = self.shrinkage if index else PRIOR_TRIALS
        own = max(0.02, (ratio - 1.0) * (2.0 - ratio)) / (trials + behind + 1.0) / (ratio * ratio)
        spread = SPREAD * behind / (trials + behind) if index else 0.0
        return own + spread * spread

    def rung_trials(self, index: int) -> float:
        return self._shorter[index] / self._weight

    def cap(self, trials: float) -> None:
        part = trials * self._weight / max(self._reached[0], trials * self._weight)
        self._replace([[value * part for value in counts] for counts in self._counts()])

    def believe_first(self, rate: float, trials: float) -> None:
        """Put the first position where verified drafts have it."""
        self.cap(trials)
        kept = trials * self._weight
        self._hits[0], self._reached[0] = rate * kept, kept
        self._longer[0], self._shorter[0] = kept * sum(rate**j for j in range(self.rungs[0] + 1)), kept
        self._restart()

    def adopt(self, other: AcceptanceEstimator) -> None:
        scale = self._weight / other._weight
        shared = min(self.depth, other.depth)
        self._hits[:shared] = [scale * value for value in other._hits[:shared]]
        self._reached[:shared] = [scale * value for value in other._reached[:shared]]
        low = 0
        for index, rung in enumerate(self.rungs):
            if rung <= other.depth:
                kept = scale * other._reached[rung - 1]
                self._shorter[index] = kept
                self._longer[index] = kept * other.tokens[rung] / other.tokens[low]
            low = rung
        self.changes = other.changes
        self._restart()

    def _counts(self) -> list[list[float]]:
        return [self._hits, self._reached, self._longer, self._shorter]

    def _count(self, steps: int, counts: Sequence[int], weight: float) -> tuple[int, float, float, float]:
        """Add the round's hits and trials; return accepted drafts and the log-likelihood ratios up, far up and down."""
        rejected_at = bytes(counts).count
        steps = min(steps, self.depth)
        hits, reached, ratios = self._hits, self._reached, self._detector.ratios
        alive = len(counts)
        accepted = 0
        up = far = down = 0.0
        for index in range(steps):
            misses = rejected_at(index)
            alive_after = alive - misses
            accepted += alive_after
            hits[index] += weight * alive_after
            reached[index] += weight * alive
            up_hit, up_miss, far_hit, far_miss, down_hit, down_miss = ratios[index]
            up += alive_after * up_hit + misses * up_miss
            far += alive_after * far_hit + misses * far_miss
            down += alive_after * down_hit + misses * down_miss
            alive = alive_after
            if not alive:
                break
        return accepted, up, far, down

    def _estimate(self) -> None:
        weight = self._weight
        pull = self.shrinkage * weight
        h, prior = PRIOR_ACCEPTANCE, PRIOR_TRIALS * weight
        conditional = []
        for hits, reached in zip(self._hits, self._reached):
            h = (hits + prior * h) / (reached + prior)
            conditional.append(h)
            h *= FALL_PER_STEP
            prior = pull
        expected, prior = self._first, PRIOR_TRIALS * weight
        tokens, low, value, ratios = [1.0] * (self.depth + 1), 0, 1.0, []
        for index, rung in enumerate(self.rungs):
            if index:
                expected = self._expect[index - 1].ratio(value) * math.exp(self._bias[index - 1])
                prior = pull
            ratio = (self._longer[index] + prior * expected) / (self._shorter[index] + prior)
            ratios.append(ratio)
            step = value * (ratio - 1.0) / (rung - low)
            for steps in range(low + 1, rung + 1):
                value += step
                tokens[steps] = value
            low = rung
        self.conditional, self.tokens, self.ratios = conditional, tokens, ratios

    def _learn_bias(self, steps: int) -> None:
        for index in range(1, len(self.rungs)):
            if self.rungs[index] > steps:
                break
            if self._shorter[index] < 4.0 * self._weight:
                continue
            low = self.tokens[self.rungs[index - 1]]
            found = math.log(self._longer[index] / self._shorter[index] / self._expect[index - 1].ratio(low))
            self._bias_rounds[index - 1] = rounds = min(
                self._bias_rounds[index - 1] + 1.0, BIAS_MEMORIES * self._memory / BELIEVE_ROUNDS
            )
            self._bias[index - 1] += (found - self._bias[index - 1]) / rounds

    def _drop(self, marked: list[list[float]]) -> None:
        self.changes += 1
        self._replace(
            [
                [max(0.0, now - old) for now, old in zip(counts, before)]
                for counts, before in zip(self._counts(), marked)
            ]
        )

    def _replace(self, counts: list[list[float]]) -> None:
        self._hits, self._reached, self._longer, self._shorter = counts
        self._restart()

    def _restart(self) -> None:
        self._detector.restart()
        self._estimate()
        self._detector.believe(self.conditional)

    def _rescale(self) -> None:
        factor = 1.0 / self._weight
        self._weight = 1.0
        self._hits, self._reached, self._longer, self._shorter = (
            [value * factor for value in counts] for counts in self._counts()
        )
        self._detector.scale(factor)
