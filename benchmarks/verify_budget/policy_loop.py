"""The policy itself in the closed loop: it chooses steps and budget before every round, as on a server.

As in ``sglang_adaptive.simulate``: the result of a round arrives after the next one was chosen, and the policy reads
round times with noise. Of rounds without a budget every ``LOOKS``-th says what budgets would have kept, of the others
each; drafts that nobody verified are drawn by their chances, as the server does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.verify_budget.beliefs import Plain
from benchmarks.verify_budget.closed_loop import IntArray, Slots, Tally
from benchmarks.verify_budget.prices import Prices
from sglang_adaptive.policy.config.throughput_options import ThroughputOptions
from sglang_adaptive.policy.observation import BudgetEvidence, RoundObservation
from sglang_adaptive.policy.profile.profile import CostProfile, ProfileCell, ordered
from sglang_adaptive.policy.throughput.policy import ThroughputPolicy
from sglang_adaptive.runtime.calibration import BINS, UNITS, Calibration
from sglang_adaptive.runtime.round_clock import RoundClock
from sglang_adaptive.simulate.ours import KEY
from sglang_adaptive.simulate.trace import clock_factors
from sglang_adaptive.traces import Trace

LADDER = (0, 1, 2, 3, 5, 7)
LOOKS = 8


def profile_of(prices: Prices) -> CostProfile:
    """Return the rounds without budgets as a profile of the measured batch sizes."""
    cells = [ProfileCell(batch, steps, _plain(prices, batch, steps)) for batch in prices.batches for steps in LADDER]
    return CostProfile(KEY, ordered(cells), "modelled")


def _plain(prices: Prices, batch: int, steps: int) -> float:
    return float(prices.seconds(batch, steps, batch * (steps + 1))) if steps else prices.without_drafts(batch)


def true_seconds(prices: Prices, batch: int) -> dict[tuple[int, int], float]:
    """Return what a round takes by steps and budget, the steps again without one."""
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
    rounds: dict[tuple[int, int], int] = field(default_factory=dict)
    """By steps and budget."""
    switches: int = 0


def run(
    trace: Trace, prices: Prices, batch: int, tokens: int, *, budgets: bool, seed: int = 0,
    given: Mapping[str, Any] | None = None, start: int = 3, profiled: bool = True,
) -> tuple[Outcome, ThroughputPolicy]:  # fmt: skip
    """Serve until *tokens* came out."""
    took = true_seconds(prices, batch)
    options = ThroughputOptions(candidate_steps=LADDER, verify_budget=budgets, **(given or {}))
    policy = ThroughputPolicy(start, options, profile_of(prices) if profiled else None)
    policy.allow_budgets()
    slots, loop = Slots(trace, batch, seed), _Loop(policy, trace, batch, seed)
    found, last = Outcome(), None
    while found.tally.tokens < tokens:
        steps = policy.get_steps_for_batch(batch)
        place = steps, policy.budget or steps
        loop.settle(policy)
        rows, names = slots.rows, slots.requests
        right, told = loop.play(rows, *place)
        loop.fly(place, right, told, names, took[place])
        found.tally.tokens += slots.advance(right + 1)
        found.tally.seconds += took[place]
        found.tally.rounds += 1
        found.tally.verified += place[1] * batch
        found.rounds[place] = found.rounds.get(place, 0) + 1
        found.switches += last is not None and last != place
        last = place
    return found, policy


class _Loop:
    """The round under way, and how its result reaches the policy."""

    def __init__(self, policy: ThroughputPolicy, trace: Trace, batch: int, seed: int) -> None:
        self._draw = np.random.default_rng(seed + 1000)
        self._accepted, self._chances = trace.accepted, Plain(trace)
        self._noise = clock_factors(4096, self._draw)
        self._batch, self._now, self._round = batch, 0.0, 0
        self._clock = RoundClock(lambda: self._now)
        self._flying: tuple[Any, ...] | None = None
        self.calibration = Calibration()

    def play(self, rows: IntArray, steps: int, budget: int) -> tuple[IntArray, tuple[list[int], BudgetEvidence | None]]:
        """Return what each request accepts, and what the device says beside."""
        self._round += 1
        whole = np.minimum(self._accepted[rows].astype(np.int64), steps)
        packed = budget < steps
        if steps < 2 or not (packed or self._round % LOOKS == 0) or self._batch < 8:
            return whole, ([], None)
        looked = steps
        if not packed:
            looks = [s for s in LADDER if 2 <= s <= steps]
            looked = looks[self._round // LOOKS % len(looks)]
        chances = self._chances.chances(rows, looked)
        kept = self._kept(chances, [b for b in LADDER if 0 < b < looked and b <= budget])
        right, told = whole, whole
        if packed:
            right = np.minimum(whole, kept[budget])
            coins = self._draw.random(chances.shape) < chances**self.calibration.exponent
            lead = np.cumprod(np.where(np.arange(steps) < kept[budget][:, None], True, coins), axis=1).sum(axis=1)
            told = np.where(right < kept[budget], right, lead)
        self._calibrate(chances, right, kept[budget] if packed else np.full(len(rows), looked))
        seen = np.minimum(told, looked)
        evidence = BudgetEvidence(
            looked,
            int(seen.sum()),
            {b: int(np.minimum(seen, k).sum()) for b, k in kept.items()},
            {b: int(np.minimum(seen, b).sum()) for b in kept},
        )
        return right, (told.tolist() if packed else [], evidence)

    def _calibrate(self, chances: np.ndarray, right: IntArray, verified: IntArray) -> None:
        at = np.arange(chances.shape[1])
        tried = at < np.minimum(verified, right + 1)[:, None]
        bins = np.minimum((chances * BINS).astype(int), BINS - 1)[tried]
        hit = (at < right[:, None])[tried]
        self.calibration.add(
            np.bincount(bins, minlength=BINS).tolist(),
            np.bincount(bins, np.round(chances[tried] * UNITS), minlength=BINS).astype(int).tolist(),
            np.bincount(bins[hit], minlength=BINS).tolist(),
        )

    def _kept(self, chances: np.ndarray, budgets: Sequence[int]) -> dict[int, IntArray]:
        requests, steps = chances.shape
        order = np.argsort(-np.cumprod(chances, axis=1), axis=None, kind="stable") // steps
        return {b: np.bincount(order[: requests * b], minlength=requests) for b in budgets}

    def fly(self, place: tuple[int, int], right: IntArray, told: Any, names: IntArray, seconds: float) -> None:
        """Keep the round until its result arrives."""
        self._flying = place, right.tolist(), told, names.tolist(), seconds * self._noise[self._round % 4096]

    def settle(self, policy: ThroughputPolicy) -> None:
        """Hand over the result of the round before."""
        if self._flying is None:
            return
        (steps, budget), right, (completed, evidence), names, seconds = self._flying
        self._now += seconds
        policy.observe(
            RoundObservation(
                steps,
                right,
                self._batch,
                self._clock.read(steps, self._batch, budget),
                requests=names,
                budget=None if budget == steps else budget,
                completed=completed,
                evidence=evidence,
            )
        )
        if policy.cost_sync_due:
            policy.import_cost(policy.export_cost())
