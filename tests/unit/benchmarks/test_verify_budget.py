"""Verify budgets on recorded text: prices, kept drafts, the policy's input, and the result."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.traces.replay import rounds
from benchmarks.verify_budget import KNOTS, LADDER, Held, fit, kept, read_extra, run, throughput
from sglang_adaptive.lab.traces import CHAIN, LEVELS, Trace
from sglang_adaptive.policy.observation import RoundObservation

STEPS, BATCHES = (0, 1, 2, 3, 5, 7), (1, 2, 4, 8, 16, 32, 64)


def drawn(requests: int = 24, positions: int = 150, seed: int = 3) -> Trace:
    """A trace whose drafts are correct exactly as often as the draft predicts, independently of each other."""
    draw = np.random.default_rng(seed)
    levels = draw.integers(2, LEVELS, (requests * positions, CHAIN)).astype(np.uint8)
    right = draw.random(levels.shape) < (levels + 0.5) / LEVELS
    length = np.full(requests, positions, np.int32)
    return Trace(
        *("target", "draft", "prompts", 0.0, "hardware", "command", "2026-11-23"),
        category=("text",) * requests,
        length=length,
        loop_start=length,
        accepted=np.cumprod(right, axis=1).sum(axis=1).astype(np.uint8),
        confidence=levels,
    )


def made_up(batch: int, steps: int, tokens: int) -> float:
    """Return the seconds of a round by a law of the model's form."""
    return 0.005 + 0.0000002 * batch + 0.0002 * steps + np.interp(tokens, KNOTS, np.array(KNOTS) ** 1.5 * 1e-6)


PRICES = fit({(batch, steps): made_up(batch, steps, batch * (steps + 1)) for batch in BATCHES for steps in STEPS})


TRACE, BATCH = drawn(), 32
CHEAP = fit({(b, s): made_up(b, s, b * (s + 1)) - 0.00017 * s for b in BATCHES for s in STEPS})
"""Rounds whose draft steps take 30 us."""
SECONDS = CHEAP.by_place(BATCH)


def test_prices_are_those_of_the_rounds_that_were_measured() -> None:
    assert PRICES.worst_share < 0.005
    for batch in BATCHES:
        assert PRICES.rectangle(batch, 0) == pytest.approx(made_up(batch, 0, batch))
    # An unmeasured round: 7 draft steps, 3 drafts verified.
    assert PRICES.seconds(32, 7, 128) == pytest.approx(made_up(32, 7, 128), rel=0.02)
    assert PRICES.seconds(128, 3, 600) > PRICES.seconds(64, 3, 600) > PRICES.seconds(64, 3, 512)


def test_what_a_gpu_measured_is_charged(tmp_path: Path) -> None:
    part = {"rank": 0.01, "pack": 0.02, "spread": 0.03, "ragged": 2.04, "rectangle": 2.0}
    cells = [
        {"batch": batch, "context": 1_000, "draft_step": 0.2 + 0.001 * batch, "budget 1": part} for batch in (1, 16, 64)
    ]
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({"cells": [*cells, {**cells[0], "context": 4_000, "draft_step": 9.0}]}))
    extra = read_extra(path)
    assert extra.drafted == pytest.approx(1e-6)
    measured = {(batch, steps): made_up(batch, steps, batch * (steps + 1)) for batch in BATCHES for steps in STEPS}
    priced = fit(measured, extra=extra)
    assert priced.draft[1] == extra.drafted
    assert priced.ragged(32, 7, 128) - priced.seconds(32, 7, 128) == pytest.approx(0.0001)
    assert PRICES.ragged(32, 7, 128) == PRICES.seconds(32, 7, 128)


def test_likeliest_drafts_are_the_first_of_each_chain() -> None:
    chances = np.random.default_rng(1).random((6, 7))
    products = np.cumprod(chances, axis=1)
    for budget, one in kept(chances, [1, 3, 7]).items():
        assert one.sum() == 6 * budget
        inside = np.arange(7) < one[:, None]
        if budget < 7:
            assert products[inside].min() >= products[~inside].max()


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_verifying_all_is_the_replay_of_the_trace(steps: int) -> None:
    taken = sum(len(rounds(accepted, steps)) for _, accepted, _ in TRACE.requests())
    found = run(Held(steps), TRACE, 1, len(TRACE.accepted), SECONDS)
    assert (found.tokens, found.rounds) == (len(TRACE.accepted), {(steps, steps): taken})


class Told(Held):
    """Holds steps and budget, and records what a policy would have been told."""

    def __init__(self, steps: int, budget: int | None) -> None:
        super().__init__(steps, budget)
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
    found = run(throughput(CHEAP, True), TRACE, BATCH, 100_000, SECONDS)
    assert found.rate(SECONDS) > 0.985 * rates[best]
    rectangles = run(throughput(CHEAP, False), TRACE, BATCH, 100_000, SECONDS)
    assert all(b == s for s, b in rectangles.rounds)
    assert found.rate(SECONDS) > 1.02 * rectangles.rate(SECONDS)
