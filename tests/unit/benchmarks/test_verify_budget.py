"""The verify budget's benchmark: its prices, what it keeps of a batch, and what its beliefs come to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.traces.replay import rounds
from benchmarks.verify_budget.beliefs import BELIEFS, Learnt, Plain
from benchmarks.verify_budget.budget import fixed, free, likeliest
from benchmarks.verify_budget.early_stop import stopping
from benchmarks.verify_budget.measure import cells
from benchmarks.verify_budget.prices import KNOTS, fit, read_extra
from sglang_adaptive.traces import CHAIN, LEVELS, Trace

STEPS, BATCHES = (0, 1, 2, 3, 5, 7), (1, 2, 4, 8, 16, 32, 64)


def drawn(requests: int = 24, positions: int = 150, seed: int = 3) -> Trace:
    """A trace whose drafts are right exactly as often as the draft says, and each by itself."""
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
    """Seconds of a round by a law of the model's form."""
    return 0.005 + 0.0000002 * batch + 0.0002 * steps + np.interp(tokens, KNOTS, np.array(KNOTS) ** 1.5 * 1e-6)


PRICES = fit({(batch, steps): made_up(batch, steps, batch * (steps + 1)) for batch in BATCHES for steps in STEPS})


def test_prices_are_those_of_the_rounds_that_were_measured() -> None:
    assert PRICES.worst_share < 0.005
    for batch in BATCHES:
        assert PRICES.without_drafts(batch) == pytest.approx(made_up(batch, 0, batch))
    # A round that nobody measured: 7 drafted steps, 3 drafts verified.
    assert float(PRICES.seconds(32, 7, 128)) == pytest.approx(made_up(32, 7, 128), rel=0.02)
    assert PRICES.seconds(128, 3, 600) > PRICES.seconds(64, 3, 600) > PRICES.seconds(64, 3, 512)


def test_what_a_drafted_step_costs_a_request_cannot_be_told() -> None:
    measured = {(batch, steps): made_up(batch, steps, batch * (steps + 1)) for batch in BATCHES for steps in STEPS}
    dear = fit(measured, 0.25)
    assert dear.worst_share == pytest.approx(PRICES.worst_share, abs=0.005)
    assert dear.seconds(32, 7, 128) > 1.02 * PRICES.seconds(32, 7, 128)


def test_likeliest_drafts_are_the_first_of_each_chain() -> None:
    products = np.cumprod(np.random.default_rng(1).random((6, 7)), axis=1)
    for count in (0, 1, 13, 42):
        kept = likeliest(products, count)
        assert kept.sum() == count
        inside = np.arange(7) < kept[:, None]
        if 0 < count < 42:
            assert products[inside].min() >= products[~inside].max()


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_verifying_all_is_the_replay_of_the_trace(steps: int) -> None:
    trace = drawn()
    taken = sum(len(rounds(accepted, steps)) for _, accepted, _ in trace.requests())
    tally = fixed(trace, Plain(trace), 1, steps, steps, len(trace.accepted))
    assert (tally.tokens, tally.rounds) == (len(trace.accepted), taken)
    assert tally.verified == taken * steps


def test_a_budget_brings_more_than_as_many_drafts_of_everybody() -> None:
    trace = drawn()
    ragged, alike = (fixed(trace, Plain(trace), 8, steps, 2, 6000) for steps in (5, 2))
    assert ragged.verified / ragged.rounds == alike.verified / alike.rounds == 16
    assert ragged.tokens / ragged.rounds > 1.03 * alike.tokens / alike.rounds


def test_any_number_and_early_stops_are_worth_their_seconds() -> None:
    trace = drawn()

    def rate(batch: int, steps: int) -> float:
        tally = fixed(trace, Plain(trace), batch, steps, steps, 8000)
        return tally.tokens / (tally.rounds * float(PRICES.seconds(batch, steps, batch * (steps + 1))))

    best = max(rate(32, steps) for steps in STEPS[1:])
    chosen = free(trace, Plain(trace), 32, 3, PRICES, best, 8000)
    assert chosen.rate > best and 0 < chosen.verified < 3 * 32 * chosen.rounds
    best = max(rate(1, steps) for steps in STEPS[1:])
    stopped = stopping(trace, Plain(trace), 1, PRICES, best, 0.0, 8000)
    assert stopped.rate > best
    assert stopping(trace, Plain(trace), 1, PRICES, best, 0.001, 8000).rate < stopped.rate


def test_beliefs_learn_what_a_wrong_draft_says_of_itself() -> None:
    trace = drawn(requests=60)
    honest = trace.confidence.copy()
    trace.confidence[:] = honest // 2  # the draft now says half of what it knows
    rows = np.arange(len(trace.accepted))
    kept = np.full(len(rows), CHAIN)
    for positions in (False, True):
        belief = Learnt(trace, positions)
        before = belief.chances(rows, CHAIN)
        belief.hear(rows, kept, trace.accepted.astype(np.int64))
        after = belief.chances(rows, CHAIN)
        truth = (honest + 0.5) / LEVELS
        assert np.abs(after - truth).mean() < 0.5 * np.abs(before - truth).mean()


def test_nothing_is_learnt_of_drafts_that_were_not_verified() -> None:
    trace = drawn()
    belief = Learnt(trace, positions=True)
    before = belief.chances(np.arange(50), CHAIN)
    belief.hear(np.arange(50), np.zeros(50, np.int64), np.zeros(50, np.int64))
    assert (belief.chances(np.arange(50), CHAIN) == before).all()


def test_cells_hold_every_belief_and_a_gain_of_one_at_most_in_vain() -> None:
    found = list(cells(drawn(), {"made up": PRICES}, (2, 8)))
    assert [cell["batch"] for cell in found] == [2, 8]
    assert found[0]["early"] and not found[0]["budget"]
    assert set(found[1]["budget"]) == set(BELIEFS) and found[1]["free"]["gain"] > 1
    # These drafts know exactly how good they are.
    learnt = found[1]["budget"]["learnt by probability"]["gain"]
    assert learnt == pytest.approx(found[1]["budget"]["as it is"]["gain"], abs=0.03)


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
