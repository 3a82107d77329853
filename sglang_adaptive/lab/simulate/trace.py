"""A trace: everything about a run that no policy can change, drawn before any policy runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sglang_adaptive.lab.simulate.acceptance import (
    CountArray,
    FloatArray,
    draw_accepted,
    expected_tokens,
    hazards,
)
from sglang_adaptive.lab.simulate.cost import RoundCost
from sglang_adaptive.lab.simulate.population import IntArray, Population

CLOCK_SIGMA = 0.02
"""Standard deviation of the log of a round's time around its mean."""
OUTLIER_SHARE = 0.005
"""Rounds that something else on the machine makes ``OUTLIER_RANGE`` times as long."""
OUTLIER_RANGE = (1.5, 4.0)


@dataclass(frozen=True, eq=False)
class Trace:
    """The truth that one run is played on.

    Rates by depth are expectations under the true process, so a score computed from them carries none of the
    luck of the draws; a policy sees only the draws (``accepted``) and the noisy clock.
    """

    name: str
    ladder: tuple[int, ...]
    """Depths that may be chosen, ascending; the oracle chooses among these."""
    batch: IntArray
    """Requests by round."""
    tokens: FloatArray
    """Expected tokens of the whole batch, shape ``(rounds, depth + 1)``."""
    seconds: FloatArray
    """True mean seconds before noise, same shape."""
    clock: FloatArray
    """Factor by which the round's time differs from its mean, the same at every depth."""
    accepted: CountArray
    """Drafts that each slot would accept at unlimited depth, shape ``(rounds, max_batch)``."""
    comparable: NDArray[np.bool_]
    """False where a prefill shares the round, so that its time says nothing."""
    changes: tuple[int, ...]
    """Rounds at which a regime starts."""
    given: RoundCost | None
    """The cost profile handed to the policy; None for a start without one."""
    request_hazards: FloatArray | None = None
    """``h`` by request number, only where requests differ; shape ``(requests, depth)``."""
    population: Population | None = None

    @property
    def rounds(self) -> int:
        """Length of the trace."""
        return len(self.batch)

    @cached_property
    def rates(self) -> FloatArray:
        """Expected tokens/s by depth."""
        return self.tokens / self.seconds

    @cached_property
    def accepted_lists(self) -> list[list[int]]:
        """``accepted`` as lists, for policies that read numbers and not arrays."""
        return [row[:batch] for row, batch in zip(self.accepted.tolist(), self.batch.tolist(), strict=True)]

    @cached_property
    def drawn_tokens(self) -> FloatArray:
        """Tokens that the draws give at each depth, bonus tokens included."""
        depth = self.tokens.shape[1] - 1
        present = np.arange(self.accepted.shape[1]) < self.batch[:, None]
        kept = [np.where(present, np.minimum(self.accepted, s), 0).sum(axis=1) for s in range(depth + 1)]
        return np.asarray(self.batch[:, None] + np.stack(kept, axis=1), dtype=float)

    @cached_property
    def oracle_depths(self) -> IntArray:
        """The depth of the ladder with the highest expected tokens/s, for each round."""
        best = np.argmax(self.rates[:, list(self.ladder)], axis=1)
        return np.asarray(np.asarray(self.ladder)[best])


@dataclass(frozen=True, eq=False)
class Scene:
    """What a suite decides about a trace; ``build`` draws the rest."""

    name: str
    ladder: tuple[int, ...]
    cost: RoundCost
    population: Population
    p: FloatArray
    """Acceptance of position 1, by round; or by request number when ``per_request``."""
    decay: FloatArray | float
    changes: tuple[int, ...] = ()
    given: RoundCost | None = None
    slowdown: FloatArray | None = None
    """Factor on the true cost, shape ``(rounds, depth + 1)``."""
    per_request: bool = False

    def build(self, rng: np.random.Generator) -> Trace:
        """Draw acceptances and clock, and tabulate the expectations."""
        depth = self.cost.steps[-1]
        who = self.population
        present = who.requests >= 0
        h = hazards(self.p, self.decay, depth)
        # (rounds, slots, depth) when requests differ, else (rounds, 1, depth) shared by the slots.
        by_slot = h[who.requests] if self.per_request else h[:, None, :]
        uniforms = rng.random((*present.shape, depth), dtype=np.float32)
        each = expected_tokens(by_slot)
        tokens = (each * present[..., None]).sum(axis=1)
        table = self.cost.table(present.shape[1])
        seconds = table[who.batch] * (1.0 if self.slowdown is None else self.slowdown)
        return Trace(
            name=self.name,
            ladder=self.ladder,
            batch=who.batch,
            tokens=tokens,
            seconds=seconds,
            clock=clock_factors(len(who.batch), rng),
            accepted=draw_accepted(by_slot, uniforms),
            comparable=who.arrivals == 0,
            changes=self.changes,
            given=self.given,
            request_hazards=h if self.per_request else None,
            population=who if self.per_request else None,
        )


def clock_factors(rounds: int, rng: np.random.Generator) -> FloatArray:
    """Draw the factor by which each round's time differs from its mean."""
    factor = np.exp(rng.normal(0.0, CLOCK_SIGMA, rounds))
    outlier = rng.random(rounds) < OUTLIER_SHARE
    factor[outlier] *= rng.uniform(*OUTLIER_RANGE, size=int(outlier.sum()))
    return factor
