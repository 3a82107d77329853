"""What budgets keep is learned; the best budget stands for its steps, and the policy runs it and learns its time."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import pytest

from sglang_adaptive.policy.base import ChoosesBudgets
from sglang_adaptive.policy.observation import BudgetEvidence, RoundObservation
from sglang_adaptive.policy.profile import CostProfile, ProfileCell, ProfileKey, ordered
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.policy.throughput.acceptance import AcceptanceEstimator
from sglang_adaptive.policy.throughput.budgets import FOLD_ROUNDS, LEAST_REQUESTS, MARGIN, MEMORY, Budgets, BudgetYields
from sglang_adaptive.policy.throughput.cost import CostModel, RoundTimeRow, RoundTimeTable

KEY = ProfileKey("target", "draft", "gpu", 1, 1, "fa3")
LADDER = (0, 1, 2, 3, 5)
BATCH = 32


def seconds(batch: int, steps: int, verified: int) -> float:
    """Seconds on a large target: a verified token is expensive, a draft step cheap."""
    return 0.02 + 0.0003 * steps + 0.00012 * batch * (verified + 1)


PROFILE = CostProfile(
    KEY,
    ordered(ProfileCell(batch, steps, seconds(batch, steps, steps)) for batch in (1, 8, 32, 64) for steps in LADDER),
)


def policy(budgets: bool = True, allowed: bool = True) -> ThroughputPolicy:
    made = ThroughputPolicy(3, ThroughputOptions(candidate_steps=LADDER, verify_budget=budgets), PROFILE)
    if allowed:
        made.allow_budgets(True)
    return made


SURE = [5] * 8 + [1] * 8 + [0] * 16
"""Accepted drafts of a batch with unequal requests; the draft knows them."""


def serve(made: ThroughputPolicy, rounds: int, slower: float = 1.0) -> Counter[tuple[int, int | None]]:
    """Serve the batch; rounds with a budget take *slower* times as long as predicted; the draft ranks perfectly."""
    done: Counter[tuple[int, int | None]] = Counter()
    last = None
    for index in range(rounds):
        steps = made.get_steps_for_batch(BATCH)
        budget = made.budget
        done[steps, budget] += 1
        whole = [min(count, steps) for count in SURE]
        verified = [steps] * BATCH if budget is None else spread(whole, steps, budget)
        counts = [min(pair) for pair in zip(whole, verified, strict=True)]
        took = seconds(BATCH, steps, steps if budget is None else budget) * (1.0 if budget is None else slower)
        look = evidence(whole, steps, budget) if steps > 1 and index % 4 == 0 else None
        made.observe(
            RoundObservation(
                steps, counts, BATCH, took if last == (steps, budget) else None, requests=range(BATCH),
                budget=budget, completed=whole if budget is not None else (), evidence=look,
            )
        )  # fmt: skip
        last = steps, budget
        if made.cost_sync_due:
            made.import_cost(made.export_cost())
    return done


def spread(whole: list[int], steps: int, budget: int) -> list[int]:
    """Give each request its correct drafts first, then divide the rest."""
    left, given = budget * len(whole), []
    for count in sorted(whole, reverse=True):
        given.append(min(count, left))
        left -= given[-1]
    order = sorted(range(len(whole)), key=lambda at: -whole[at])
    verified = [0] * len(whole)
    for at, kept in zip(order, given, strict=True):
        verified[at] = kept
    for at in range(len(whole)):
        more = min(steps - verified[at], left)
        verified[at] += more
        left -= more
    return verified


def evidence(whole: list[int], steps: int, budget: int | None) -> BudgetEvidence:
    budgets = [b for b in LADDER if 0 < b < steps and (budget is None or b <= budget)]
    kept = {b: sum(map(min, zip(whole, spread(whole, steps, b), strict=True))) for b in budgets}
    return BudgetEvidence(steps, sum(whole), kept, {b: sum(min(count, b) for count in whole) for b in budgets})


def test_budgets_are_chosen_where_they_pay() -> None:
    done = serve(made := policy(), 600)
    assert done.most_common(1)[0][0][1] is not None, done
    rectangles = serve(policy(budgets=False), 600)
    assert all(budget is None for _, budget in rectangles)
    told = made.snapshot()
    assert told["budget"] == made.budget and "per request are verified" in told["why"]["words"]
    assert any(cell["budget"] is not None for cell in told["cost_cells"])
    rate = next(rate for rate in told["rates"] if rate["steps"] == told["steps"])
    assert rate["budget"] == made.budget and rate["source"] == "measured"
    assert rate["seconds"] == pytest.approx(seconds(BATCH, told["steps"], told["budget"]), rel=0.02)
    assert rate["tokens_per_second"] == pytest.approx(rate["tokens_per_round"] / rate["seconds"])


def test_without_leave_and_without_the_option_every_draft_is_verified() -> None:
    for made in (policy(allowed=False), policy(budgets=False)):
        assert isinstance(made, ChoosesBudgets)
        assert all(budget is None for _, budget in serve(made, 200))


def test_a_pair_that_turns_out_slow_is_left() -> None:
    done = serve(policy(), 800, slower=1.5)
    late = serve(made := policy(), 400, slower=1.5)
    assert done[made.get_steps_for_batch(BATCH), made.budget] > 300 and made.budget is None, (done, late)


def test_the_next_start_knows_the_times_of_pairs() -> None:
    serve(made := policy(), 600)
    learnt = made.export_profile(KEY, "test")
    pairs = [cell for cell in learnt.cells if cell.budget is not None]
    assert pairs
    again = ThroughputPolicy(3, ThroughputOptions(candidate_steps=LADDER, verify_budget=True), learnt)
    again.allow_budgets(True)
    cell = max(pairs, key=lambda cell: cell.rounds or 0)
    row = again._times.at(cell.batch_size)
    assert row.log_base[cell.steps, cell.budget or 0] == pytest.approx(math.log(cell.seconds))


def test_zero_steps_are_weighed_with_the_time_that_the_round_took() -> None:
    made = policy()
    row = made._row(BATCH)
    assert row.took[5, 2] < row.took[5, 5]
    for place, budget in ((5, 5), None), ((5, 2), 2):
        before = made._choice.lost
        made.observe(RoundObservation(5, [0] * BATCH, BATCH, budget=budget, completed=[0] * BATCH if budget else ()))
        assert row.zero is not None
        lost = made._choice.lost - before * (1 - 1 / 500)
        assert lost == pytest.approx(row.took[place] / row.zero - 1.0)


class Rows:
    """The table's rows, folded."""

    def __init__(self) -> None:
        self.times = RoundTimeTable(CostModel(LADDER, PROFILE))
        self.times.allow_budgets(True)
        self.budgets, self.acceptance = Budgets(), AcceptanceEstimator(LADDER, 3840, 12.0)

    def fold(self, batch: int = BATCH, now: int = 0) -> RoundTimeRow:
        return self.budgets.fold(self.times.at(batch), self.acceptance, now)

    def say(self, share: float) -> None:
        """Report for each pair that it saves *share* of the loss of a uniform cut."""
        for steps in LADDER[2:]:
            budgets = [b for b in LADDER if 0 < b < steps]
            self.budgets.yields.learn(
                BudgetEvidence(steps, 100_000, {b: int(100_000 * share) for b in budgets}, dict.fromkeys(budgets, 0))
            )


def test_a_row_is_folded_to_the_least_seconds_a_token() -> None:
    rows = Rows()
    rows.say(0.95)
    plain, folded = rows.times.at(BATCH), rows.fold()
    tokens = rows.acceptance.tokens
    for rung, steps, found in folded.rungs:
        worth = {None: plain.seconds[steps] * (1.0 - plain.deviation[steps])}
        for budget, took, _ in plain.packed[steps]:
            kept = tokens[budget] + rows.budgets.yields.share(steps, budget) * (tokens[steps] - tokens[budget])
            worth[budget] = took * tokens[steps] / kept
        chosen = folded.budgets.get(steps)
        assert worth[chosen] <= min(worth.values()) / (1 - MARGIN)
        expected = plain.seconds[steps] if chosen is None else worth[chosen]
        assert found == folded.seconds[steps] == pytest.approx(expected)
        assert LADDER[rung] == steps
    assert folded.budgets, "none pays"


def test_a_row_is_folded_now_and_then_and_whenever_times_change() -> None:
    rows = Rows()
    first = rows.fold(now=0)
    rows.say(0.95)
    assert rows.fold(now=FOLD_ROUNDS - 1) is first
    assert rows.fold(now=FOLD_ROUNDS).budgets != first.budgets
    rows.times.forget()
    assert rows.fold(now=FOLD_ROUNDS + 1) is not first


def test_a_round_that_was_never_timed_is_not_given_up_for_a_budget() -> None:
    rows = Rows()
    rows.say(0.7)  # a budget of 1 for 3 steps promises 14% more
    guessed = replace(rows.times.at(BATCH), deviation=dict.fromkeys(LADDER, 0.15))
    assert rows.fold().budgets[3] == 1
    assert 3 not in rows.budgets.fold(guessed, rows.acceptance, 0).budgets


def test_small_batches_are_left_alone() -> None:
    rows = Rows()
    rows.say(1.0)
    assert rows.fold(LEAST_REQUESTS - 1).budgets == {} != rows.fold(LEAST_REQUESTS).budgets


def test_a_budget_is_kept_until_another_is_better_by_the_margin() -> None:
    rows, steps = Rows(), 3
    plain, tokens = rows.times.at(BATCH), rows.acceptance.tokens

    def even(budget: int) -> float:
        """Return the share at which *budget* promises as much as verifying all drafts, with its doubt included."""
        took = next(took for found, took, _ in plain.packed[steps] if found == budget)
        all_drafts = plain.seconds[steps] * (1.0 - plain.deviation[steps])
        return (took / all_drafts * tokens[steps] - tokens[budget]) / (tokens[steps] - tokens[budget])

    def say(share: float, now: int) -> int | None:
        """Let a budget of 2 save *share* and one of 1 nothing; return the chosen budget."""
        rows.budgets.yields = BudgetYields()
        rows.budgets.yields.learn(BudgetEvidence(steps, 100_000, {1: 0, 2: int(100_000 * share)}, {1: 0, 2: 0}))
        return rows.fold(now=now).budgets.get(steps)

    assert say(even(2) + 0.005, 0) is None, "it is hardly better than none"
    assert say(even(2) + 0.2, 1000) == 2
    assert say(even(2) + 0.005, 2000) == 2
    assert say(even(2) - 0.005, 3000) == 2, "none is hardly better"
    assert say(even(2) - 0.2, 4000) is None


def kept_of(steps: int, whole: int, kept: dict[int, tuple[int, int]]) -> BudgetEvidence:
    """*kept* gives, by budget, what the most likely and the first drafts yielded."""
    ranked, uniform = ({budget: pair[at] for budget, pair in kept.items()} for at in (0, 1))
    return BudgetEvidence(steps, whole, ranked, uniform)


def test_nothing_seen_saves_as_a_budget_s_share_of_the_drafts() -> None:
    yields = BudgetYields()
    assert [yields.share(5, budget) for budget in (1, 2, 3)] == pytest.approx([0.2, 0.4, 0.6])
    assert yields.as_list() == []


def test_the_share_is_what_ranking_saves_of_what_a_uniform_cut_loses() -> None:
    yields, rng = BudgetYields(), random.Random(0)
    for _ in range(400):
        lost = rng.randrange(20, 60)
        saved = sum(rng.random() < 0.7 for _ in range(lost))
        yields.learn(kept_of(5, 100 + lost, {2: (100 + saved, 100)}))
    assert yields.share(5, 2) == pytest.approx(0.7, abs=0.02)
    assert yields.share(5, 3) == pytest.approx(0.6), "another pair has its own"
    assert [(one["steps"], one["budget"]) for one in yields.as_list()] == [(5, 2)]


def test_it_may_do_harm_and_is_forgotten_slowly() -> None:
    yields = BudgetYields()
    for _ in range(int(MEMORY)):
        yields.learn(kept_of(3, 140, {1: (90, 100)}))
    assert yields.share(3, 1) < -0.2, "less than a uniform cut"
    for _ in range(int(3 * MEMORY)):
        yields.learn(kept_of(3, 140, {1: (130, 100)}))
    assert yields.share(3, 1) == pytest.approx(0.7, abs=0.07)


def test_rounds_that_lose_nothing_say_nothing() -> None:
    yields = BudgetYields()
    yields.learn(kept_of(3, 0, {1: (0, 0), 2: (0, 0)}))
    assert yields.share(3, 1) == pytest.approx(1 / 3)
