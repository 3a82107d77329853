"""What a budget saves is learnt from rounds that say it of all smaller budgets."""

from __future__ import annotations

import random

import pytest

from sglang_adaptive.policy.observation import BudgetEvidence
from sglang_adaptive.policy.throughput.budgets.yields import MEMORY, BudgetYields


def evidence(steps: int, whole: int, kept: dict[int, tuple[int, int]]) -> BudgetEvidence:
    """*kept* are by budget what the likeliest and what the first drafts brought."""
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
        yields.learn(evidence(5, 100 + lost, {2: (100 + saved, 100)}))
    assert yields.share(5, 2) == pytest.approx(0.7, abs=0.02)
    assert yields.share(5, 3) == pytest.approx(0.6), "another pair has its own"
    assert [(one["steps"], one["budget"]) for one in yields.as_list()] == [(5, 2)]


def test_it_may_do_harm_and_is_forgotten_slowly() -> None:
    yields = BudgetYields()
    for _ in range(int(MEMORY)):
        yields.learn(evidence(3, 140, {1: (90, 100)}))
    assert yields.share(3, 1) < -0.2, "less than a uniform cut"
    for _ in range(int(3 * MEMORY)):
        yields.learn(evidence(3, 140, {1: (130, 100)}))
    assert yields.share(3, 1) == pytest.approx(0.7, abs=0.07)


def test_rounds_that_lose_nothing_say_nothing() -> None:
    yields = BudgetYields()
    yields.learn(evidence(3, 0, {1: (0, 0), 2: (0, 0)}))
    assert yields.share(3, 1) == pytest.approx(1 / 3)
