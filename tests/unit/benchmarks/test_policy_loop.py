"""The policy in the verify budget's closed loop: what it is told, and what it comes to."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.verify_budget.policy_loop import LADDER, Uniform, run, throughput, true_seconds
from benchmarks.verify_budget.prices import fit
from sglang_adaptive.policy.observation import RoundObservation
from tests.unit.benchmarks.test_verify_budget import BATCHES, STEPS, drawn, made_up

TRACE, BATCH = drawn(), 32
CHEAP = {(b, s): made_up(b, s, b * (s + 1)) - 0.00017 * s for b in BATCHES for s in STEPS}
"""Rounds whose drafted steps take 30 us."""
PRICES = fit(CHEAP)
SECONDS = true_seconds(PRICES, BATCH)


class Told(Uniform):
    """Held steps and budget, and what a policy would have been told."""

    cost_sync_due = False

    def __init__(self, steps: int, budget: int | None) -> None:
        super().__init__(steps)
        self.budget = budget  # type: ignore[assignment]
        self.seen: list[RoundObservation] = []

    def observe(self, seen: RoundObservation) -> None:
        self.seen.append(seen)


def told(steps: int, budget: int | None) -> list[RoundObservation]:
    policy = Told(steps, budget)
    run(policy, TRACE, BATCH, 20_000, SECONDS)
    return policy.seen


def test_a_place_has_a_price_and_a_smaller_budget_a_lower_one() -> None:
    assert len(SECONDS) == len(LADDER) + sum(0 < b < s for s in LADDER for b in LADDER)
    assert SECONDS[7, 1] < SECONDS[7, 3] < SECONDS[7, 7]
    assert SECONDS[3, 3] < SECONDS[7, 3], "four more drafted steps"


def test_rounds_with_a_budget_say_what_a_server_s_say() -> None:
    seen = told(7, 3)
    assert len(seen) > 100
    for one in seen:
        assert one.verified is not None and one.completed is not None
        assert (one.budget, sum(one.verified)) == (3, 3 * BATCH)
        pairs = zip(one.num_correct_drafts_per_req, one.verified, one.completed, strict=True)
        for accepted, verified, completed in pairs:
            assert accepted <= verified and (completed == accepted or accepted == verified <= completed)
    looks = [one.evidence for one in seen if one.evidence is not None]
    assert all(sorted(look.ranked) == [1, 2, 3] for look in looks)
    assert len(looks) == pytest.approx(len(seen) / 4, abs=1)


def test_rectangles_say_what_every_smaller_budget_would_have_kept() -> None:
    looks = [one.evidence for one in told(7, None) if one.evidence is not None]
    assert {look.steps for look in looks} == {2, 3, 5, 7}
    for look in looks:
        assert sorted(look.ranked) == [b for b in LADDER if 0 < b < look.steps]
        kept = list(look.ranked.values())
        assert kept == sorted(kept) and kept[-1] <= look.whole
    gains = [look.ranked[3] - look.uniform[3] for look in looks if look.steps == 7]
    assert np.mean(gains) > 0, "the draft's chances are right here"


def test_the_policy_comes_to_what_the_best_place_of_all_brings() -> None:
    held = {(s, b): run(Told(s, b if b < s else None), TRACE, BATCH, 20_000, SECONDS) for s, b in SECONDS}
    rates = {place: one.rate(SECONDS) for place, one in held.items()}
    best = max(rates, key=lambda place: rates[place])
    assert best[1] < best[0]
    found = run(throughput(PRICES, True), TRACE, BATCH, 100_000, SECONDS)
    assert found.rate(SECONDS) > 0.985 * rates[best]
    rectangles = run(throughput(PRICES, False), TRACE, BATCH, 100_000, SECONDS)
    assert all(b == s for s, b in rectangles.rounds)
    assert found.rate(SECONDS) > 1.02 * rectangles.rate(SECONDS)
