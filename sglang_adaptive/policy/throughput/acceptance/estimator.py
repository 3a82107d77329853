"""Conditional acceptance of each draft position, learnt from the rounds of any depth.

``h_j`` is the probability that draft ``j`` is accepted given that draft ``j - 1`` was. A round drafted with ``s``
steps says something about positions ``1..s`` that were reached, and nothing about the rest, so hits and trials are
counted a position:

    h_j = (hits_j + K * rho_j * h_{j-1}) / (reached_j + K)        E[tokens | s] = 1 + h_1 + ... + h_1*...*h_s

Counts are forgotten exponentially in rounds. ``K`` trials of the position before shrink each estimate and carry it
past the deepest recent draft; ``rho_j``, the usual step from one position to the next, is the ``Shape``.
A round of ``n`` requests weighs like ``n / (1 + n / SATURATION)`` of them: requests of one batch share their moment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sglang_adaptive.policy.throughput.acceptance.change import ChangeDetector
from sglang_adaptive.policy.throughput.acceptance.shape import Shape

PRIOR_ACCEPTANCE = 0.6
PRIOR_TRIALS = 2.0
SATURATION = 16.0
LEAST_PULL = 1e-6
HIGHEST = 0.995
"""Estimates above this are cut: no draft is accepted for ever."""
REBELIEVE_ROUNDS = 8
SHAPE_MEMORIES = 16
"""The shape is forgotten this many times more slowly than the acceptances."""
_LARGEST_WEIGHT = 1e9


class AcceptanceEstimator:
    """Acceptance by position and expected tokens by depth; position ``j`` has index ``j - 1`` in the lists."""

    def __init__(self, depth: int, memory_rounds: float, shrinkage: float, change_threshold: float) -> None:
        self.depth = depth
        self.wary = False
        """Whether speculation has been losing: a fall of acceptance is then believed sooner."""
        self.changes = 0
        """Times that history was dropped because acceptance had changed."""
        self.conditional = [PRIOR_ACCEPTANCE] * depth
        self.tokens = [1.0] * (depth + 1)
        """Expected tokens of one request in a round, by draft steps."""
        self._growth = 1.0 / (1.0 - 1.0 / memory_rounds)
        self.shrinkage = shrinkage
        # Newer rounds weigh more instead of older ones less: a round then touches its own positions only.
        self._weight = 1.0
        self._hits, self._reached = [0.0] * depth, [0.0] * depth
        self._suppose()
        self._shape = Shape(depth, max(2.0, SHAPE_MEMORIES * memory_rounds / REBELIEVE_ROUNDS))
        self._rounds = 0
        self._estimate()
        self._detector = ChangeDetector(self.conditional, change_threshold)

    def update(self, steps: int, num_correct_drafts_per_req: Sequence[int], shadow: bool = False) -> int:
        """Learn from a round drafted with *steps* >= 1; return the accepted drafts of all its requests.

        *shadow* says that nothing was drafted: these are the drafts that were heard of at zero steps.
        Raises ValueError when a count is negative or above 255.
        """
        requests = len(num_correct_drafts_per_req)
        if not requests:
            return 0
        self._weight *= self._growth
        share = 1.0 / (1.0 + requests / SATURATION)
        detector = self._detector
        detector.mark(self._hits, self._reached)
        accepted, up, far, down = self._count(steps, num_correct_drafts_per_req, self._weight * share)
        dropped = detector.step(up * share, far * share, down * share, self.wary, scarce=shadow)
        if dropped is not None:
            self._drop(*dropped)
        self._estimate()
        self._rounds += 1
        if self._rounds % REBELIEVE_ROUNDS == 0:
            self._shape.learn(self._hits, self._reached, self._weight, self.conditional)
            self._detector.believe(self.conditional)
        if self._weight > _LARGEST_WEIGHT:
            self._rescale()
        return accepted

    @property
    def rising(self) -> bool:
        """Whether the latest rounds speak for a higher acceptance."""
        return self._detector.rising

    @property
    def promising(self) -> bool:
        """Whether they do so by enough to want to hear more of the draft."""
        return self._detector.promising

    def trials(self, position: int) -> float:
        """Return the requests that lately reached 1-based *position*, forgetting applied."""
        return self._reached[position - 1] / self._weight

    def deviation(self, position: int) -> float:
        """Return the standard deviation of ``h`` at 1-based *position*."""
        h = self.conditional[position - 1]
        trials = self.trials(position)
        behind = self.shrinkage if position > 1 else PRIOR_TRIALS
        own = h * (1.0 - h) / (trials + behind + 1.0)
        # Without trials of its own a position is as uncertain as the step that leads to it.
        borrowed = behind / (trials + behind + 1e-9) * self._shape.spread(position - 1) if position > 1 else 0.0
        return math.sqrt(own + borrowed * borrowed)

    def shift(self, log_odds: float, trials: float) -> None:
        """Move every position by *log_odds*, and keep at most *trials* of evidence for the result."""
        for index, h in enumerate(self.conditional):
            moved = 1.0 / (1.0 + (1.0 - h) / h * math.exp(-log_odds))
            kept = min(self._reached[index], trials * self._weight)
            self._reached[index], self._hits[index] = kept, kept * moved
        self._restart()

    def adopt(self, other: AcceptanceEstimator) -> None:
        """Begin from what *other* has counted at the positions that both have; deeper ones follow their shape."""
        scale = self._weight / other._weight
        shared = min(self.depth, other.depth)
        self._hits[:shared] = [scale * value for value in other._hits[:shared]]
        self._reached[:shared] = [scale * value for value in other._reached[:shared]]
        self._shape.adopt(other._shape, shared)
        self.changes = other.changes
        self._restart()

    def cap(self, trials: float) -> None:
        """Keep no more than *trials* of evidence for the first position, and as large a part for the others."""
        part = trials * self._weight / max(self._reached[0], trials * self._weight)
        self._hits = [value * part for value in self._hits]
        self._reached = [value * part for value in self._reached]
        self._restart()

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
        # Without shrinkage a position that was never reached still has to take the one before it.
        pull = max(self.shrinkage, LEAST_PULL) * self._weight
        h = self._hits[0] / self._reached[0]
        survives = tokens = 1.0
        conditional: list[float] = []
        expected = [1.0]
        for hits, reached, step in zip(self._hits, self._reached, self._shape.steps, strict=True):
            if conditional:
                h = (hits + pull * step * h) / (reached + pull)
            if h > HIGHEST:
                h = HIGHEST
            conditional.append(h)
            survives *= h
            tokens += survives
            expected.append(tokens)
        self.conditional, self.tokens = conditional, expected

    def _drop(self, hits: list[float], reached: list[float]) -> None:
        """Forget what was counted before a change: the counts *hits* and *reached*."""
        self.changes += 1
        self._hits = [max(0.0, now - old) for now, old in zip(self._hits, hits, strict=True)]
        self._reached = [max(0.0, now - old) for now, old in zip(self._reached, reached, strict=True)]
        self._suppose()
        self._restart()

    def _suppose(self) -> None:
        """Start from a guess about the first position; it is forgotten like a round that was seen."""
        self._reached[0] += PRIOR_TRIALS * self._weight
        self._hits[0] += PRIOR_TRIALS * self._weight * PRIOR_ACCEPTANCE

    def _restart(self) -> None:
        """Go on from counts that were just replaced."""
        self._detector.restart()
        self._shape.restart(self._hits, self._reached)
        self._estimate()
        self._detector.believe(self.conditional)

    def _rescale(self) -> None:
        factor = 1.0 / self._weight
        self._weight = 1.0
        self._hits = [value * factor for value in self._hits]
        self._reached = [value * factor for value in self._reached]
        self._detector.scale(factor)
        self._shape.restart(self._hits, self._reached)
