"""A trace: everything about a run that a policy cannot change, drawn before any policy runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sglang_adaptive.lab.simulate.cost import FloatArray, RoundCost

# The acceptance process: which draft positions the target would accept.
#
# A request has a conditional acceptance probability ``h_j = min(1, p * decay**(j-1))`` for draft position ``j``
# (1-based), given that the previous position was accepted. A round with ``s`` steps yields one bonus token and every
# draft before the first rejection, so
#
# E[tokens | s] = 1 + h_1 + h_1*h_2 + ... + h_1*...*h_s


CountArray = NDArray[np.int8]


def hazards(p: ArrayLike, decay: ArrayLike, depth: int) -> FloatArray:
    """Return ``h`` for positions ``1..depth`` on a new last axis; *p* and *decay* broadcast."""
    base = np.asarray(p, dtype=float)[..., None]
    rate = np.asarray(decay, dtype=float)[..., None]
    return np.asarray(np.clip(base * rate ** np.arange(depth), 0.0, 1.0))


def expected_tokens(h: FloatArray) -> FloatArray:
    """Return the expected tokens of one request for 0..depth steps: shape ``h.shape[:-1] + (depth + 1,)``."""
    reached = np.cumsum(np.cumprod(h, axis=-1), axis=-1)
    return np.concatenate([np.ones((*h.shape[:-1], 1)), 1.0 + reached], axis=-1)


def draw_accepted(h: FloatArray, uniforms: NDArray[np.float32]) -> CountArray:
    """Return how many drafts would be accepted at unlimited depth: the first run of ``uniforms < h``.

    A round with ``s`` steps accepts ``min(s, drawn)``, so every depth and every policy is judged on the same draws
    (common random numbers).
    """
    accepted = np.asarray(uniforms < h)
    return np.asarray(np.logical_and.accumulate(accepted, axis=-1).sum(axis=-1), dtype=np.int8)


# Quantities that are constant for a while and then jump.


SHORTEST, LONGEST = 60, 400
"""Rounds per regime, both inclusive."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """A value for each round, and the rounds at which it changes (without the first round)."""

    values: NDArray[np.float64]
    changes: tuple[int, ...] = ()


def constant(value: float, rounds: int) -> Schedule:
    """Return one regime."""
    return Schedule(np.full(rounds, float(value)))


def switching(rounds: int, rng: np.random.Generator, draw: Callable[[], float]) -> Schedule:
    """Return regimes of uniformly random length with independently drawn values."""
    values: list[float] = []
    changes: list[int] = []
    while len(values) < rounds:
        changes.append(len(values))
        values += [draw()] * int(rng.integers(SHORTEST, LONGEST + 1))
    return Schedule(np.array(values[:rounds]), tuple(changes[1:]))


def alternating(rounds: int, period: int, first: float, second: float) -> Schedule:
    """Return *first* for *period* rounds, then *second*, and so on."""
    phase = np.arange(rounds) // period
    return Schedule(np.where(phase % 2 == 0, first, second), tuple(range(period, rounds, period)))


def random_p(rng: np.random.Generator) -> float:
    """Draw the acceptance of the first position: uniform in 0.2..0.95."""
    return float(rng.uniform(0.2, 0.95))


def random_decay(rng: np.random.Generator) -> float:
    """Draw the factor of acceptance from one position to the next: uniform in 0.93..1."""
    return float(rng.uniform(0.93, 1.0))


def random_batch(rng: np.random.Generator, max_batch: int) -> float:
    """Draw a batch size in 1..max_batch, half of the time uniform, else log-uniform: no size is rare."""
    if rng.random() < 0.5:
        return float(rng.integers(1, max_batch + 1))
    return float(min(max_batch, int(np.exp(rng.uniform(0.0, np.log(max_batch + 1))))))


# Requests come and go: which requests are in the batch at each round.


IntArray = NDArray[np.int64]

MEAN_LIFETIME_ROUNDS = 120
"""About 300 output tokens at an accept length of 2.5."""


@dataclass(frozen=True, eq=False)
class Population:
    """Which requests decode at each round.

    Load is indexed by rounds, not by seconds or tokens, so every policy gets the same batches: a faster policy does not
    drain its queue sooner. The comparison then covers only what a policy decides.
    """

    requests: IntArray
    """Request number by round and batch slot, ``-1`` past the batch; shape ``(rounds, max_batch)``."""

    batch: IntArray
    """Requests in each round, at least 1."""

    arrivals: IntArray
    """Requests that joined at each round, after their prefill."""


def closed_loop(target: IntArray, rng: np.random.Generator, max_batch: int) -> Population:
    """Keep ``target[t]`` requests decoding: finished ones are replaced at once, a lower target cuts."""
    return _admit(target.tolist(), target.tolist(), rng, max_batch)


def open_loop(rate: NDArray[np.float64], rng: np.random.Generator, max_batch: int) -> Population:
    """Poisson arrivals of ``rate[t]`` per round: a full batch queues them, an empty one skips the wait."""
    return _admit(rng.poisson(rate).tolist(), None, rng, max_batch)


def _admit(
    arriving: Sequence[int], target: Sequence[int] | None, rng: np.random.Generator, max_batch: int
) -> Population:
    rounds = len(arriving)
    requests = np.full((rounds, max_batch), -1, dtype=np.int64)
    arrivals = np.zeros(rounds, dtype=np.int64)
    live: list[tuple[int, int]] = []
    born = queued = 0
    lifetimes = _lifetimes(rng)
    for now in range(rounds):
        live = [entry for entry in live if entry[1] > now]
        if target is not None:
            del live[target[now] :]
            joining = target[now] - len(live)
        else:
            queued += arriving[now]
            queued = max(queued, 0 if live else 1)
            joining = min(queued, max_batch - len(live))
            queued -= joining
        for _ in range(joining):
            live.append((born, now + next(lifetimes)))
            born += 1
        arrivals[now] = joining
        requests[now, : len(live)] = [number for number, _ in live]
    return Population(requests, (requests >= 0).sum(axis=1), arrivals)


def _lifetimes(rng: np.random.Generator) -> Iterator[int]:
    while True:
        yield from rng.geometric(1.0 / MEAN_LIFETIME_ROUNDS, size=256).tolist()


CLOCK_SIGMA = 0.02
"""Standard deviation of the log of a round's time around its mean."""
OUTLIER_SHARE = 0.005
"""Share of rounds that something else on the machine makes ``OUTLIER_RANGE`` times as long."""
OUTLIER_RANGE = (1.5, 4.0)


@dataclass(frozen=True, eq=False)
class Trace:
    """The ground truth of one run.

    Rates by depth are expectations under the true process, so scores computed from them do not depend on the luck of
    the draws; a policy sees only the draws (``accepted``) and the noisy clock.
    """

    ladder: tuple[int, ...]
    """Depths that may be chosen, ascending; the oracle chooses among these."""
    batch: IntArray
    """Requests by round."""
    tokens: FloatArray
    """Expected tokens of the whole batch, shape ``(rounds, depth + 1)``."""
    seconds: FloatArray
    """True mean seconds before noise, same shape."""
    clock: FloatArray
    """Factor between the round's time and its mean, the same at every depth."""
    accepted: CountArray
    """Drafts that each slot would accept at unlimited depth, shape ``(rounds, max_batch)``."""
    comparable: NDArray[np.bool_]
    """False if a prefill shares the round, which makes its time meaningless."""
    changes: tuple[int, ...]
    """Rounds at which a regime starts."""
    given: RoundCost | None
    """The cost profile given to the policy; None for a start without one."""

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
        """``accepted`` as lists, for policies that read numbers instead of arrays."""
        return [row[:batch] for row, batch in zip(self.accepted.tolist(), self.batch.tolist(), strict=True)]

    @cached_property
    def drawn_tokens(self) -> FloatArray:
        """Tokens that the draws yield at each depth, including bonus tokens."""
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

    cost: RoundCost
    """The true cost; its steps may be chosen."""
    population: Population
    p: FloatArray
    """Acceptance of position 1, by round, or by request number if ``per_request``."""
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
            ladder=self.cost.steps,
            batch=who.batch,
            tokens=tokens,
            seconds=seconds,
            clock=clock_factors(len(who.batch), rng),
            accepted=draw_accepted(by_slot, uniforms),
            comparable=who.arrivals == 0,
            changes=self.changes,
            given=self.given,
        )


def clock_factors(rounds: int, rng: np.random.Generator) -> FloatArray:
    """Draw the factor by which each round's time differs from its mean."""
    factor = np.exp(rng.normal(0.0, CLOCK_SIGMA, rounds))
    outlier = rng.random(rounds) < OUTLIER_SHARE
    factor[outlier] *= rng.uniform(*OUTLIER_RANGE, size=int(outlier.sum()))
    return factor
