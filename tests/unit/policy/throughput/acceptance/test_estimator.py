"""Acceptance by position: censored counts, forgetting, shrinkage, the test for changes, batch regions."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.policy.throughput.acceptance import change
from sglang_adaptive.policy.throughput.acceptance.estimator import HIGHEST, SATURATION, AcceptanceEstimator
from sglang_adaptive.policy.throughput.acceptance.ratio_deviation import learnable_deviation, ratio_deviation
from sglang_adaptive.policy.throughput.acceptance.regions import LEAST_ROUNDS, LEAST_VISITS, BatchRegions

NEVER = 1e9


def estimator(memory: float = 96, threshold: float = 7.0, shrinkage: float = 12.0) -> AcceptanceEstimator:
    return AcceptanceEstimator(7, memory, shrinkage, threshold)


def draw(rng: random.Random, p: float, steps: int, batch: int, decay: float = 1.0) -> list[int]:
    counts = []
    for _ in range(batch):
        accepted = 0
        while accepted < steps and rng.random() < p * decay**accepted:
            accepted += 1
        counts.append(accepted)
    return counts


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("batch", [1, 16])
def test_finds_the_acceptance_of_a_steady_process(p: float, batch: int) -> None:
    learner, rng = estimator(), random.Random(1)
    for _ in range(600):
        learner.update(5, draw(rng, p, 5, batch, 0.97))
    for position in (1, 2, 3):
        truth = p * 0.97 ** (position - 1)
        assert abs(learner.conditional[position - 1] - truth) < 4 * learner.deviation(position) + 0.01


def test_a_round_informs_only_the_positions_that_it_drafted() -> None:
    learner = estimator()
    for _ in range(50):
        learner.update(2, [2, 2, 1, 0])
    assert learner.trials(1) > 50 and learner.trials(2) > 30
    assert [learner.trials(position) for position in range(3, 8)] == [0.0] * 5
    # Not drafted is not rejected: what follows is carried on from the position before.
    assert learner.conditional[2] > 0.9 * learner.conditional[1]


def test_positions_after_a_rejection_were_not_reached() -> None:
    learner = estimator()
    learner.update(5, [0] * 8)
    assert learner.trials(2) == 0.0


def test_expected_tokens_follow_the_chain_of_acceptances() -> None:
    learner, rng = estimator(), random.Random(2)
    for _ in range(30):
        learner.update(7, draw(rng, 0.8, 7, 4))
    survives, tokens = 1.0, 1.0
    for depth, h in enumerate(learner.conditional, start=1):
        survives *= h
        tokens += survives
        assert learner.tokens[depth] == pytest.approx(tokens)


def test_counts_equal_plain_exponential_forgetting() -> None:
    memory, learner, rng = 8, estimator(memory=8, threshold=NEVER), random.Random(3)
    hits, reached = [1.2] + [0.0] * 6, [2.0] + [0.0] * 6
    for _ in range(400):  # the running weight passes its largest value several times
        steps, batch = rng.choice([1, 3, 7]), rng.choice([1, 4, 32])
        counts = draw(rng, 0.6, steps, batch)
        learner.update(steps, counts)
        hits, reached = ([value * (1 - 1 / memory) for value in values] for values in (hits, reached))
        for position in range(1, steps + 1):
            share = 1 / (1 + batch / SATURATION)
            reached[position - 1] += share * sum(count >= position - 1 for count in counts)
            hits[position - 1] += share * sum(count >= position for count in counts)
        assert [learner.trials(p) for p in range(1, 8)] == pytest.approx(reached, rel=1e-6, abs=1e-9)
        assert learner.conditional[0] == pytest.approx(min(HIGHEST, hits[0] / reached[0]), rel=1e-6)


def test_one_large_batch_weighs_like_at_most_sixteen_requests() -> None:
    learner = estimator(threshold=NEVER)
    learner.update(1, [1] * 512)
    assert learner.trials(1) < SATURATION + 2.0


@pytest.mark.parametrize(("before", "after"), [(0.9, 0.3), (0.3, 0.9), (0.8, 0.0)])
def test_a_change_is_noticed_within_ten_rounds_at_batch_8(before: float, after: float) -> None:
    learner, rng = estimator(), random.Random(4)
    for _ in range(300):
        learner.update(3, draw(rng, before, 3, 8))
    settled = learner.changes
    for _ in range(10):
        learner.update(3, draw(rng, after, 3, 8))
    assert learner.changes > settled
    assert abs(learner.conditional[0] - after) < 0.2


def test_without_the_change_test_old_rounds_linger() -> None:
    learner, rng = estimator(threshold=NEVER), random.Random(4)
    for rounds, p in ((300, 0.9), (10, 0.3)):
        for _ in range(rounds):
            learner.update(3, draw(rng, p, 3, 8))
    assert learner.conditional[0] > 0.7


def test_nothing_changes_in_a_steady_process() -> None:
    learner, rng = estimator(), random.Random(5)
    for _ in range(50):
        learner.update(3, draw(rng, 0.7, 3, 8))
    settled = learner.changes
    for _ in range(2000):
        learner.update(3, draw(rng, 0.7, 3, 8))
    assert learner.changes - settled <= 2


def test_chance_raises_few_alarms_in_a_long_steady_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request at p 0.7, 200,000 rounds: over twenty minutes. A draft that fails after that is seen soon enough."""

    def alarms_and_rounds_to_notice() -> tuple[int, int]:
        learner, rng = estimator(threshold=10.0), random.Random(3)
        for _ in range(200_000):
            learner.update(5, draw(rng, 0.7, 5, 1))
        alarms = learner.changes
        return alarms, next(n for n in range(1, 100) if learner.update(5, [0]) == 0 and learner.changes > alarms)

    alarms, rounds = alarms_and_rounds_to_notice()
    monkeypatch.setattr(change, "DOUBLED", 0.0)
    more, sooner = alarms_and_rounds_to_notice()
    assert alarms == 0 < more
    assert 15 <= sooner <= rounds <= 45


def test_losing_makes_a_fall_be_believed_sooner() -> None:
    def rounds_to_notice(wary: bool) -> int:
        learner = estimator()
        for index in range(200):
            learner.update(1, [index % 10 != 0])
        learner.wary = wary
        return next(n for n in range(1, 50) if learner.update(1, [0]) == 0 and learner.changes)

    assert rounds_to_notice(True) < rounds_to_notice(False)


def test_deeper_positions_are_less_sure_than_drafted_ones() -> None:
    learner, rng = estimator(), random.Random(6)
    for _ in range(200):
        learner.update(2, draw(rng, 0.8, 2, 8))
    assert learner.deviation(5) > 2 * learner.deviation(1)
    assert learnable_deviation(learner, 2, 2, 4, 8) == 0.0
    assert learnable_deviation(learner, 7, 2, 4, 8) > learnable_deviation(learner, 3, 2, 4, 8) > 0.0
    assert ratio_deviation(learner, 3, 3) == 0.0


def test_capping_keeps_the_estimate_and_drops_evidence() -> None:
    learner, rng = estimator(), random.Random(7)
    for _ in range(200):
        learner.update(3, draw(rng, 0.5, 3, 16))
    before = learner.conditional[0]
    learner.cap(20.0)
    assert learner.trials(1) == pytest.approx(20.0)
    assert learner.conditional[0] == pytest.approx(before)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="range"):
        estimator().update(2, [1, -1])


@given(
    rounds=st.lists(
        st.integers(1, 7).flatmap(
            lambda steps: st.tuples(st.just(steps), st.lists(st.integers(0, steps), min_size=0, max_size=40))
        ),
        max_size=60,
    ),
    shrinkage=st.sampled_from([0.0, 12.0]),
)
def test_any_rounds_leave_usable_estimates(rounds: list[tuple[int, list[int]]], shrinkage: float) -> None:
    learner = estimator(shrinkage=shrinkage)
    for steps, counts in rounds:
        assert learner.update(steps, counts) == sum(counts)
    assert all(0.0 <= h <= HIGHEST for h in learner.conditional)
    assert all(later >= earlier for earlier, later in itertools.pairwise(learner.tokens))


@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=64), seed=st.integers(0, 99))
def test_the_order_of_requests_does_not_matter(counts: list[int], seed: int) -> None:
    shuffled = random.Random(seed).sample(counts, len(counts))
    one, other = estimator(), estimator()
    one.update(5, counts)
    other.update(5, shuffled)
    assert one.conditional == other.conditional


def visits(stays: list[tuple[int, float]]) -> list[float]:
    """Go through stays of (batch size, acceptance believed at the end); return the move made on entering each."""
    regions, moves, believed = BatchRegions(), [], 0.6
    for batch, acceptance in stays:
        moves.append(regions.follow(batch, believed))
        believed = acceptance
        assert [regions.follow(batch, believed) for _ in range(LEAST_ROUNDS)] == [0.0] * LEAST_ROUNDS
    return moves


def test_a_batch_region_moves_acceptance_only_after_several_visits_agree() -> None:
    moves = visits([(2, 0.4), (48, 0.9)] * (LEAST_VISITS + 2))
    assert moves[: 2 * LEAST_VISITS - 1] == [0.0] * (2 * LEAST_VISITS - 1)
    difference = math.log(0.9 / 0.1) - math.log(0.4 / 0.6)
    assert moves[-2:] == pytest.approx([-difference, difference])


def test_regions_that_vary_as_much_within_as_between_move_nothing() -> None:
    rng = random.Random(8)
    moves = visits([(batch, rng.uniform(0.2, 0.95)) for _ in range(8) for batch in (2, 48)])
    assert moves == [0.0] * len(moves)
