"""Expected tokens by steps: levels and their predictions, censored counts, and trust in shadow drafts."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.lab.simulate.engine import DraftOutputs
from sglang_adaptive.policy.choice import Coming, drafted
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.policy.throughput.acceptance import SATURATION, AcceptanceEstimator, RequestLevels, ShadowTrust
from tests.unit.policy.throughput.test_cost import profile

LADDER = (0, 1, 2, 3, 5, 7)


def estimator(shrinkage: float = 12.0) -> AcceptanceEstimator:
    return AcceptanceEstimator(LADDER, 3840, shrinkage)


def taught(p: float, steps: int, batch: int, rounds: int, seed: int, decay: float = 1.0) -> AcceptanceEstimator:
    """Return an estimator after *rounds* of a steady process."""
    learner, rng = estimator(), random.Random(seed)
    for _ in range(rounds):
        learner.update(steps, drafts(rng, p, steps, batch, decay))
    return learner


def drafts(rng: random.Random, p: float, steps: int, batch: int, decay: float = 1.0) -> list[int]:
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
    learner = taught(p, 5, batch, 1200, 1, 0.97)
    for position in (1, 2, 3):
        truth = p * 0.97 ** (position - 1)
        assert abs(learner.conditional[position - 1] - truth) < 4 * learner.deviation(position) + 0.02


def test_in_a_steady_process_levels_come_to_say_little() -> None:
    """All requests are alike, so one's luck predicts nothing about its next round."""
    learner, rng = estimator(), random.Random(2)
    spans = []
    for index in range(3000):
        learner.update(3, drafts(rng, 0.7, 3, 1), [index // 100])
        spans.append(learner.tokens[3])
    assert pstdev(spans[-500:]) < 0.5 * pstdev(spans[:500])


def test_levels_part_requests_that_differ() -> None:
    learner, rng = estimator(), random.Random(3)
    for request in range(60):
        p = 0.9 if request % 2 else 0.2
        for _ in range(40):
            learner.update(3, drafts(rng, p, 3, 1), [request])
        truth = sum(p**j for j in range(4))
        if request > 40:
            assert learner.tokens[3] == pytest.approx(truth, rel=0.15)


@pytest.mark.parametrize(("before", "after"), [(0.9, 0.3), (0.3, 0.9)])
def test_a_change_shows_within_twenty_rounds_at_batch_8(before: float, after: float) -> None:
    learner, rng = estimator(), random.Random(4)
    for _ in range(300):
        learner.update(3, drafts(rng, before, 3, 8))
    for _ in range(20):
        learner.update(3, drafts(rng, after, 3, 8))
    assert learner.tokens[3] == pytest.approx(sum(after**j for j in range(4)), rel=0.2)


def test_a_request_keeps_its_level_when_places_change() -> None:
    levels = RequestLevels(7)
    for _ in range(10):
        levels.update(3, [3, 0], ["good", "bad"])
    good, bad = levels.bins
    assert good > bad
    levels.update(0, [], ["bad", "new", "good"])  # no shadow accepts came
    assert (levels.bins[0], levels.bins[2]) == (bad, good)
    assert bad < levels.bins[1] < good


def test_the_bin_of_a_round_is_what_was_known_when_its_steps_were_chosen() -> None:
    levels = RequestLevels(7)
    first = levels.update(3, [3], ["a"])
    second = levels.update(3, [3], ["a"])
    assert first == second  # the first result had not arrived
    assert levels.update(3, [3], ["a"]) > first


def test_a_round_informs_only_the_positions_that_it_drafted() -> None:
    learner = estimator()
    for _ in range(50):
        learner.update(2, [2] * 4)
    assert learner.trials(1) > 10 and learner.trials(2) > 10
    assert [learner.trials(position) for position in range(3, 8)] == [0.0] * 5
    # Not drafted is not rejected: the estimates continue from the position before.
    assert learner.conditional[2] > 0.9 * learner.conditional[1]


def test_progress_counts_over_each_request_s_own_pace() -> None:
    learner, rng = estimator(), random.Random(5)
    for _ in range(400):
        learner.update(3, drafts(rng, 0.95, 3, 1) + drafts(rng, 0.1, 3, 1), ["easy", "hard"])
    easy, hard = [[sum(p**j for j in range(s + 1)) for s in LADDER] for p in (0.95, 0.1)]
    rounds = [0.5 * (easy[3] / e + hard[3] / h) for e, h in zip(easy, hard, strict=True)]
    assert learner.slower(3)[:4] == pytest.approx(rounds[:4], rel=0.1)


def test_one_large_batch_weighs_like_at_most_sixteen_requests() -> None:
    learner = estimator()
    learner.update(1, [1] * 128)
    assert sum(row[0] for row in learner._reached) / learner._weight <= SATURATION


def test_deeper_positions_are_less_sure_than_drafted_ones() -> None:
    learner = taught(0.8, 2, 8, 200, 6)
    assert learner.deviation(5) > 2 * learner.deviation(1)
    assert learner.ratio_deviation(3, 3) == 0.0


def test_a_doubt_drops_evidence() -> None:
    learner = taught(0.5, 3, 16, 200, 7)
    learner.doubt()
    assert max(row[0] for row in learner._reached) / learner._weight <= learner.shrinkage + 1e-9


@pytest.mark.parametrize(("before", "after", "rounds", "off"), [(0.9, 0.2, 20, 0.35), (0.2, 0.9, 100, 0.15)])
def test_a_change_of_deeper_positions_alone_is_noticed(before: float, after: float, rounds: int, off: float) -> None:
    """Evidence of the former acceptance is dropped there, and kept of the first two positions."""
    chances, kept = [], []
    for seed in range(20):
        learner, rng = estimator(), random.Random(seed)
        for deep, count in ((before, 600), (after, rounds)):
            for _ in range(count):
                ended = [next((k for k in range(5) if rng.random() > (0.8, deep)[k > 1]), 5) for _ in range(8)]
                learner.update(5, ended)
        chances.append(learner.conditional[2])
        kept.append(learner.trials(3) / learner.trials(1))
    assert fmean(chances) == pytest.approx(after, abs=off)
    assert fmean(kept) < 0.6 < 0.8**2, "a share that no change explains"


@pytest.mark.parametrize("p", [0.3, 0.9])
def test_chance_is_no_change(p: float) -> None:
    learner = taught(p, 3, 8, 2000, 3)
    assert sum(row[0] for row in learner._reached) / learner._weight > 5000


def test_of_a_round_deeper_than_all_candidates_the_known_positions_count() -> None:
    learner, same = AcceptanceEstimator((0, 1, 3), 3840, 12.0), AcceptanceEstimator((0, 1, 3), 3840, 12.0)
    learner.update(7, [7, 4, 1])
    same.update(3, [3, 3, 1])
    assert learner.tokens == same.tokens


@given(
    rounds=st.lists(
        st.integers(0, 7).flatmap(
            lambda steps: st.tuples(st.just(steps), st.lists(st.integers(0, max(1, steps)), min_size=0, max_size=40))
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
    assert 0.0 <= learner.levels.usual <= 1.0
    assert 0.0 <= learner.ratio_deviation(0, 7) < math.inf


def test_a_deep_ladder_of_drafts_that_are_never_right_has_finite_figures() -> None:
    """Without a pull, the probability of the last of 32 underflows a float."""
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


SHADOW_LADDER = (0, 1, 3, 7)
EVERY = 8


def around_a_change(
    trust: ShadowTrust, shadow: float, verified: float, rng: random.Random, batch: int = 1, hears_first: bool = True
) -> int:
    """Follow a stretch of one kind with a stretch of the other; return how often shadow acceptance proved wrong."""
    wrong = 0
    for hears in (hears_first, not hears_first):
        for _ in range(32):
            outcome = [int(rng.random() < (shadow if hears else verified)) for _ in range(batch)]
            wrong += trust.add(outcome, verified=not hears)
    return wrong


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("p", [0.05, 0.3, 0.6, 0.95])
def test_chance_seldom_makes_a_true_sense_a_liar(p: float, batch: int) -> None:
    lies = 0
    for seed in range(200):
        trust, rng = ShadowTrust(), random.Random(seed)
        lies += around_a_change(trust, p, p, rng, batch)
    assert lies <= 8


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize(("shadow", "verified"), [(0.0, 0.7), (0.05, 0.8), (0.95, 0.2), (1.0, 0.05)])
@pytest.mark.parametrize("hears_first", [True, False])
def test_a_sense_that_is_wrong_is_found_out(shadow: float, verified: float, hears_first: bool, batch: int) -> None:
    found = 0
    for seed in range(50):
        trust, rng = ShadowTrust(), random.Random(seed)
        found += any([around_a_change(trust, shadow, verified, rng, batch, hears_first) for _ in range(4)])
    assert found >= 48


def test_the_verdict_comes_once_and_is_taken_back_where_both_find_good_drafts() -> None:
    trust = ShadowTrust()
    told = [trust.add([0], verified=False) for _ in range(20)] + [trust.add([3], verified=True) for _ in range(20)]
    assert (sum(told), trust.believed) == (1, False)
    assert trust.verified_rate > 0.85
    for _ in range(100):
        trust.add([0], verified=True), trust.add([0], verified=False)
    assert not trust.believed, "a sense that never hears a hit agrees with every bad draft"
    assert not any([trust.add([2], verified=True) or trust.add([1], verified=False) for _ in range(100)])
    assert trust.believed


def test_what_lies_far_back_is_not_compared() -> None:
    trust = ShadowTrust()
    for hit in (0, 1):
        assert not any([trust.add([hit], verified=False) for _ in range(500)])
    for hit in (1, 0):
        assert not any([trust.add([hit], verified=True) for _ in range(500)])


def test_text_that_turned_hard_before_zero_steps_began_is_no_disagreement() -> None:
    trust = ShadowTrust()
    for accepted, rounds in ((1, 200), (0, 14)):
        for _ in range(rounds):
            trust.add([accepted], verified=True)
    for _ in range(40):
        trust.add([0], verified=False)
    assert trust.believed


def policy_at_zero() -> ThroughputPolicy:
    """Return a policy for which only zero steps pay at a batch of 32, and good drafts for a single request."""
    seconds = {1: {0: 0.007, 1: 0.008, 3: 0.010, 7: 0.014}, 32: {0: 0.010, 1: 0.035, 3: 0.060, 7: 0.100}}
    known = profile({(n, s): t for n, row in seconds.items() for s, t in row.items()})
    return ThroughputPolicy(3, ThroughputOptions(candidate_steps=SHADOW_LADDER), known)


Sense = Callable[[float], float]
"""How often zero steps see a hit of a draft that is accepted with this probability."""


def serve(
    policy: ThroughputPolicy,
    p: float,
    rounds: int,
    batch: int,
    sense: Sense | None,
    seed: int = 1,
    curious: bool = True,
) -> list[int]:
    """Return the depths of *rounds* rounds; without *sense* zero steps see nothing."""
    rng, depths, outputs = random.Random(seed), [], DraftOutputs(EVERY)
    for _ in range(rounds):
        steps = policy.choose(Coming(batch)).steps
        depths.append(steps)
        counts = [next((k for k in range(steps) if rng.random() >= p), steps) for _ in range(batch)]
        told = outputs.check(steps, batch, curious and policy.wants_shadow_drafts)
        foretold = [int(rng.random() < sense(p)) for _ in range(batch)] if sense and told else []
        policy.observe(RoundObservation(drafted(steps), counts, batch, shadow_accepts=foretold))
    return depths


@pytest.mark.parametrize("sense", [lambda p: p, lambda p: 0.0], ids=["true", "deaf"])
def test_zero_steps_end_though_nothing_good_is_heard_of_a_good_draft(sense: Sense) -> None:
    policy = policy_at_zero()
    serve(policy, 0.8, 60, 1, sense)
    assert serve(policy, 0.8, 400, 32, sense).count(0) > 380
    depths = serve(policy, 0.8, 300, 1, sense)
    assert sum(map(bool, depths[150:])) > 140


def test_a_sense_that_praises_a_bad_draft_does_not_start_it_again_and_again() -> None:
    drafted = {}
    for name, sense in {"true": lambda p: p, "praises": lambda p: 0.95}.items():
        served = [serve(policy_at_zero(), 0.03, 3000, 1, sense, seed) for seed in range(1, 5)]
        drafted[name] = fmean(sum(map(bool, depths)) for depths in served)
    assert drafted["praises"] < drafted["true"] + 250
