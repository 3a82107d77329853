"""Expected tokens by steps: levels of requests, what they foretell, censored counts."""

from __future__ import annotations

import itertools
import math
import random
from statistics import pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.policy.throughput.acceptance.estimator import SATURATION, AcceptanceEstimator
from sglang_adaptive.policy.throughput.acceptance.levels import RequestLevels

LADDER = (0, 1, 2, 3, 5, 7)


def estimator(memory: float = 3840, shrinkage: float = 12.0) -> AcceptanceEstimator:
    return AcceptanceEstimator(LADDER, memory, shrinkage)


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
    for _ in range(1200):
        learner.update(5, draw(rng, p, 5, batch, 0.97))
    for position in (1, 2, 3):
        truth = p * 0.97 ** (position - 1)
        assert abs(learner.conditional[position - 1] - truth) < 4 * learner.deviation(position) + 0.02


def test_in_a_steady_process_levels_come_to_say_little() -> None:
    """All requests are alike, so what one had accepted by luck says nothing of its next round."""
    learner, rng = estimator(), random.Random(2)
    spans = []
    for index in range(3000):
        learner.update(3, draw(rng, 0.7, 3, 1), [index // 100])
        spans.append(learner.tokens[3])
    assert pstdev(spans[-500:]) < 0.5 * pstdev(spans[:500])


def test_levels_part_requests_that_differ() -> None:
    learner, rng = estimator(), random.Random(3)
    for request in range(60):
        p = 0.9 if request % 2 else 0.2
        for _ in range(40):
            learner.update(3, draw(rng, p, 3, 1), [request])
        truth = sum(p**j for j in range(4))
        if request > 40:
            assert learner.tokens[3] == pytest.approx(truth, rel=0.15)


@pytest.mark.parametrize(("before", "after"), [(0.9, 0.3), (0.3, 0.9)])
def test_a_change_shows_within_twenty_rounds_at_batch_8(before: float, after: float) -> None:
    learner, rng = estimator(), random.Random(4)
    for _ in range(300):
        learner.update(3, draw(rng, before, 3, 8))
    for _ in range(20):
        learner.update(3, draw(rng, after, 3, 8))
    assert learner.tokens[3] == pytest.approx(sum(after**j for j in range(4)), rel=0.2)


def test_a_request_keeps_its_level_when_places_change() -> None:
    levels = RequestLevels(7)
    for _ in range(10):
        levels.follow(3, [3, 0], ["good", "bad"])
    good, bad = levels.bins
    assert good > bad
    levels.follow(0, [], ["bad", "new", "good"])  # no shadow accepts came
    assert (levels.bins[0], levels.bins[2]) == (bad, good)
    assert bad < levels.bins[1] < good


def test_the_bin_of_a_round_is_what_was_known_when_its_steps_were_chosen() -> None:
    levels = RequestLevels(7)
    first = levels.follow(3, [3], ["a"])
    second = levels.follow(3, [3], ["a"])
    assert first == second  # the first result had not arrived
    assert levels.follow(3, [3], ["a"]) > first


@given(
    rounds=st.lists(st.tuples(st.integers(0, 16), st.lists(st.integers(0, 16), min_size=1, max_size=8)), max_size=40)
)
def test_levels_stay_on_their_grid(rounds: list[tuple[int, list[int]]]) -> None:
    levels = RequestLevels(16)
    for steps, counts in rounds:
        levels.follow(steps, [min(count, steps) for count in counts], ())
    assert 0.0 <= levels.usual <= 1.0


def test_a_round_informs_only_the_positions_that_it_drafted() -> None:
    learner = estimator()
    for _ in range(50):
        learner.update(2, [2] * 4)
    assert learner.trials(1) > 10 and learner.trials(2) > 10
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


def test_progress_counts_over_each_request_s_own_pace() -> None:
    learner, rng = estimator(), random.Random(5)
    for _ in range(400):
        learner.update(3, draw(rng, 0.95, 3, 1) + draw(rng, 0.1, 3, 1), ["easy", "hard"])
    easy, hard = [[sum(p**j for j in range(s + 1)) for s in LADDER] for p in (0.95, 0.1)]
    rounds = [0.5 * (easy[3] / e + hard[3] / h) for e, h in zip(easy, hard, strict=True)]
    assert learner.slower(3)[:4] == pytest.approx(rounds[:4], rel=0.1)


def test_one_large_batch_weighs_like_at_most_sixteen_requests() -> None:
    learner = estimator()
    learner.update(1, [1] * 128)
    assert sum(row["trials"] for row in learner.by_level()) <= SATURATION


def test_deeper_positions_are_less_sure_than_drafted_ones() -> None:
    learner, rng = estimator(), random.Random(6)
    for _ in range(200):
        learner.update(2, draw(rng, 0.8, 2, 8))
    assert learner.deviation(5) > 2 * learner.deviation(1)
    assert learner.ratio_deviation(3, 3) == 0.0


def test_capping_drops_evidence() -> None:
    learner, rng = estimator(), random.Random(7)
    for _ in range(200):
        learner.update(3, draw(rng, 0.5, 3, 16))
    learner.cap(20.0)
    assert max(row["trials"] for row in learner.by_level()) <= 20.0 + 1e-9


def test_of_a_round_deeper_than_all_candidates_the_known_positions_count() -> None:
    learner, same = AcceptanceEstimator((0, 1, 3), 3840, 12.0), AcceptanceEstimator((0, 1, 3), 3840, 12.0)
    learner.update(7, [7, 4, 1])
    same.update(3, [3, 3, 1])
    assert learner.tokens == same.tokens


def test_a_negative_count_is_refused() -> None:
    learner = estimator()
    with pytest.raises((ValueError, IndexError)):
        for _ in range(20):
            learner.update(2, [1, -500])


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
        learner.update(steps, counts)
    assert all(0.0 < h <= 1.0 + 1e-9 for h in learner.conditional)
    assert all(later >= earlier for earlier, later in itertools.pairwise(learner.tokens))
    assert all(rounds > 0.0 for rounds in learner.slower(3))
    assert 0.0 <= learner.ratio_deviation(0, 7) < math.inf


def test_a_deep_ladder_of_drafts_that_are_never_right_has_finite_figures() -> None:
    """Without a pull the chance of the last of 32 is below what a float can hold."""
    learner = AcceptanceEstimator((0, 1, 32), 3840, 0.0)
    for _ in range(6000):
        learner.update(1, [0] * 64)
    assert all(0.0 <= h < 1e-3 for h in learner.conditional) and learner.tokens[32] == pytest.approx(1.0)
    assert math.isfinite(learner.deviation(32)) and math.isfinite(learner.ratio_deviation(0, 32))


@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=64), seed=st.integers(0, 99))
def test_the_order_of_requests_does_not_matter(counts: list[int], seed: int) -> None:
    shuffled = random.Random(seed).sample(counts, len(counts))
    one, other = estimator(), estimator()
    for learner, given_counts in ((one, counts), (other, shuffled)):
        learner.update(5, given_counts)
    assert one.conditional == pytest.approx(other.conditional)
