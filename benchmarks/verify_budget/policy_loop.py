"""The policy itself in the closed loop: it chooses steps and budget before every round, as on a server.

As in ``sglang_adaptive.simulate``, the result of a round arrives after the next one was chosen, and the policy reads
round times with noise. The rounds that a server looks at say what smaller budgets would have kept; drafts that nobody
verified are drawn by their chances, as the server does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from benchmarks.verify_budget.beliefs import Plain
from benchmarks.verify_budget.closed_loop import IntArray, Slots, Tally
from benchmarks.verify_budget.prices import FloatArray, Prices
from sglang_adaptive.policy.config.throughput_options import ThroughputOptions
from sglang_adaptive.policy.observation import BudgetEvidence, RoundObservation
from sglang_adaptive.policy.profile.profile import CostProfile, ProfileCell, ordered
from sglang_adaptive.policy.throughput.policy import ThroughputPolicy
from sglang_adaptive.runtime.calibration import BINS, UNITS, Calibration
from sglang_adaptive.runtime.look_turns import budgets_seen, looked_steps
from sglang_adaptive.runtime.round_clock import RoundClock
from sglang_adaptive.simulate.engine import hand_over_cost
from sglang_adaptive.simulate.ours import KEY
from sglang_adaptive.simulate.trace import clock_factors
from sglang_adaptive.traces import Trace

LADDER = (0, 1, 2, 3, 5, 7)
LAUNCH_STEPS = 3
Place = tuple[int, int]
"""Steps and budget, the steps again without one."""


class Chooser(Protocol):
    """What the loop asks before every round."""

    budget: int | None

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Return the steps of the round about to start."""


class Uniform:
    """Always the same steps, and all drafts verified."""

    budget = None

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Return the steps."""
        return self._steps


def throughput(prices: Prices | None, budgets: bool) -> ThroughputPolicy:
    """Return the policy as a server starts it, with the measured rounds of *prices* as its profile if there are any."""
    options = ThroughputOptions(candidate_steps=LADDER, verify_budget=budgets)
    policy = ThroughputPolicy(LAUNCH_STEPS, options, None if prices is None else _profile(prices))
    policy.allow_budgets(True)
    return policy


def _profile(prices: Prices) -> CostProfile:
    cells = [ProfileCell(batch, steps, _plain(prices, batch, steps)) for batch in prices.batches for steps in LADDER]
    return CostProfile(KEY, ordered(cells), "modelled")


def _plain(prices: Prices, batch: int, steps: int) -> float:
    return float(prices.seconds(batch, steps, batch * (steps + 1))) if steps else prices.without_drafts(batch)


def true_seconds(prices: Prices, batch: int) -> dict[Place, float]:
    """Return what a round takes by place."""
    plain = {(steps, steps): _plain(prices, batch, steps) for steps in LADDER}
    pairs = {
        (steps, budget): float(prices.ragged(batch, steps, batch * (budget + 1)))
        for steps in LADDER
        for budget in LADDER
        if 0 < budget < steps
    }
    return plain | pairs


@dataclass
class Outcome:
    """What a run came to."""

    tally: Tally = field(default_factory=Tally)
    rounds: Counter[Place] = field(default_factory=Counter)

    def rate(self, seconds: dict[Place, float]) -> float:
        """Return tokens a second where rounds take *seconds*."""
        return self.tally.tokens / sum(count * seconds[place] for place, count in self.rounds.items())


def run(
    policy: Any, trace: Trace, batch: int, tokens: int, seconds: dict[Place, float], seed: int = 0, parts: int = 1
) -> Outcome:
    """Let *policy* serve until *tokens* came out; rounds take *seconds* by place."""
    slots, found = Slots(trace, batch, seed, parts), Outcome()
    loop = _Loop(trace, batch, seed)
    while found.tally.tokens < tokens:
        steps = policy.get_steps_for_batch(batch)
        place = steps, policy.budget or steps
        loop.settle(policy)
        right = loop.play(slots, place, seconds[place])
        found.tally.tokens += slots.advance(right + 1)
        found.tally.rounds += 1
        found.tally.verified += place[1] * batch
        found.rounds[place] += 1
    return found


class _Loop:
    """The round under way, and how its result reaches the policy."""

    def __init__(self, trace: Trace, batch: int, seed: int) -> None:
        self._draw = np.random.default_rng(seed + 1000)
        self._accepted, self._belief = trace.accepted, Plain(trace)
        self._noise = clock_factors(4096, self._draw)
        self._batch, self._now, self._round = batch, 0.0, 0
        self._clock = RoundClock(lambda: self._now)
        self._flying: tuple[RoundObservation, float] | None = None
        self._calibration = Calibration()

    def play(self, slots: Slots, place: Place, seconds: float) -> IntArray:
        """Begin a round that takes *seconds*; return what each request accepts."""
        steps, budget = place
        self._round += 1
        rows = slots.rows
        chances = self._belief.chances(rows, steps)
        right = whole = np.minimum(self._accepted[rows].astype(np.int64), steps)
        seen = RoundObservation(steps, [], self._batch, requests=slots.requests.tolist())
        verified = np.full(self._batch, steps)
        if budget < steps:
            verified = _kept(chances, [budget])[budget]
            right = np.minimum(whole, verified)
            whole = self._completed(chances, verified, right)
            seen.budget, seen.verified, seen.completed = budget, verified.tolist(), whole.tolist()
        seen.num_correct_drafts_per_req = right.tolist()
        looked = looked_steps(self._round, self._batch, steps, seen.budget, LADDER)
        if looked:
            seen.evidence = _evidence(chances[:, :looked], whole, budgets_seen(LADDER, looked, seen.budget))
            self._calibrate(chances, right, verified)
        self._flying = seen, seconds * self._noise[self._round % 4096]
        return right

    def settle(self, policy: Any) -> None:
        """Hand over the result of the round before."""
        if self._flying is not None and hasattr(policy, "observe"):
            seen, seconds = self._flying
            self._now += seconds
            seen.seconds = self._clock.read(seen.steps, self._batch, seen.budget)
            policy.observe(seen)
            if policy.cost_sync_due:
                hand_over_cost(policy)

    def _completed(self, chances: FloatArray, verified: IntArray, right: IntArray) -> IntArray:
        coins = self._draw.random(chances.shape) < chances**self._calibration.exponent
        run = np.cumprod(coins | (np.arange(chances.shape[1]) < verified[:, None]), axis=1).sum(axis=1)
        return np.where(right < verified, right, run)

    def _calibrate(self, chances: FloatArray, right: IntArray, verified: IntArray) -> None:
        at = np.arange(chances.shape[1])
        tried = at < np.minimum(verified, right + 1)[:, None]
        bins = np.minimum((chances * BINS).astype(int), BINS - 1)[tried]
        hit = (at < right[:, None])[tried]
        self._calibration.add(
            np.bincount(bins, minlength=BINS).tolist(),
            np.bincount(bins, np.round(chances[tried] * UNITS), minlength=BINS).astype(int).tolist(),
            np.bincount(bins[hit], minlength=BINS).tolist(),
        )


def _kept(chances: FloatArray, budgets: Sequence[int]) -> dict[int, IntArray]:
    requests, steps = chances.shape
    order = np.argsort(-np.cumprod(chances, axis=1), axis=None, kind="stable") // steps
    return {b: np.bincount(order[: requests * b], minlength=requests) for b in budgets}


def _evidence(chances: FloatArray, whole: IntArray, budgets: Sequence[int]) -> BudgetEvidence:
    steps = chances.shape[1]
    seen = np.minimum(whole, steps)
    return BudgetEvidence(
        steps,
        int(seen.sum()),
        {b: int(np.minimum(seen, kept).sum()) for b, kept in _kept(chances, budgets).items()},
        {b: int(np.minimum(seen, b).sum()) for b in budgets},
    )
