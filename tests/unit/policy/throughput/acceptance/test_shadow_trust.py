"""What zero steps hear of the draft is held against what is verified, and does not count where the two disagree."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from sglang_adaptive.policy.config.throughput_options import ThroughputOptions
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.profile.profile import CostProfile, ProfileCell, ProfileKey, ordered
from sglang_adaptive.policy.throughput.acceptance.shadow_trust import ShadowTrust
from sglang_adaptive.policy.throughput.policy import ThroughputPolicy
from sglang_adaptive.simulate.engine import DraftOutputs

LADDER = (0, 1, 3, 7)
EVERY = 8


def around_a_change(
    trust: ShadowTrust, heard: float, verified: float, rng: random.Random, batch: int = 1, hears_first: bool = True
) -> None:
    """Let a stretch of one kind follow on one of the other."""
    for hears in (hears_first, not hears_first):
        for _ in range(32):
            outcome = [int(rng.random() < (heard if hears else verified)) for _ in range(batch)]
            (trust.hear if hears else trust.verify)(outcome)


@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize("p", [0.05, 0.3, 0.6, 0.95])
def test_chance_seldom_makes_a_true_sense_a_liar(p: float, batch: int) -> None:
    lies = 0
    for seed in range(200):
        trust, rng = ShadowTrust(), random.Random(seed)
        around_a_change(trust, p, p, rng, batch)
        lies += trust.disagreements
    assert lies <= 8


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize(("heard", "verified"), [(0.0, 0.7), (0.05, 0.8), (0.95, 0.2), (1.0, 0.05)])
@pytest.mark.parametrize("hears_first", [True, False])
def test_a_sense_that_is_wrong_is_found_out(heard: float, verified: float, hears_first: bool, batch: int) -> None:
    found = 0
    for seed in range(50):
        trust, rng = ShadowTrust(), random.Random(seed)
        for _ in range(4):
            around_a_change(trust, heard, verified, rng, batch, hears_first)
        found += trust.disagreements > 0
    assert found >= 48


def test_the_verdict_comes_once_and_is_taken_back_where_both_find_good_drafts() -> None:
    trust = ShadowTrust()
    told = [trust.hear([0]) for _ in range(20)] + [trust.verify([3]) for _ in range(20)]
    assert (sum(told), trust.disagreements, trust.believed) == (1, 1, False)
    assert trust.verified_rate > 0.85
    for _ in range(100):
        trust.verify([0]), trust.hear([0])
    assert not trust.believed, "a sense that never hears a hit agrees with every bad draft"
    for _ in range(100):
        trust.verify([2]), trust.hear([1])
    assert trust.believed and trust.disagreements == 1


def test_what_lies_far_back_is_not_compared() -> None:
    trust = ShadowTrust()
    for hit in (0, 1):
        for _ in range(500):
            trust.hear([hit])
    for _ in range(500):
        trust.verify([1])
    for _ in range(500):
        trust.verify([0])
    assert trust.disagreements == 0


def test_text_that_turned_hard_before_zero_steps_began_is_no_disagreement() -> None:
    trust = ShadowTrust()
    for accepted, rounds in ((1, 200), (0, 14)):
        for _ in range(rounds):
            trust.verify([accepted])
    for _ in range(40):
        trust.hear([0])
    assert trust.believed


def profile() -> CostProfile:
    """A batch of 32 pays for nothing but zero steps, a single request for drafts that are good."""
    seconds = {1: {0: 0.007, 1: 0.008, 3: 0.010, 7: 0.014}, 32: {0: 0.010, 1: 0.035, 3: 0.060, 7: 0.100}}
    key = ProfileKey("target", "draft", "gpu", 1, 1, "fa3")
    return CostProfile(key, ordered(ProfileCell(n, s, t) for n, row in seconds.items() for s, t in row.items()))


def serve(policy: ThroughputPolicy, p: float, rounds: int, batch: int, sense: Callable[[float], float]) -> list[int]:
    """Return the depths of *rounds* rounds; *sense* gives how often zero steps hear a hit."""
    rng, depths, outputs = random.Random(1), [], DraftOutputs(EVERY)
    for _ in range(rounds):
        steps = policy.get_steps_for_batch(batch)
        depths.append(steps)
        counts = [next((k for k in range(steps) if rng.random() >= p), steps) for _ in range(batch)]
        told = outputs.check(steps, batch, policy.wants_shadow_drafts)
        foretold = [int(rng.random() < sense(p)) for _ in range(batch)] if told else []
        policy.observe(RoundObservation(steps, counts, batch, shadow_accepts=foretold))
    return depths


@pytest.mark.parametrize("sense", [lambda p: p, lambda p: 0.0], ids=["true", "deaf"])
def test_zero_steps_end_though_nothing_good_is_heard_of_a_good_draft(sense: Callable[[float], float]) -> None:
    policy = ThroughputPolicy(3, ThroughputOptions(candidate_steps=LADDER), profile())
    serve(policy, 0.8, 60, 1, sense)
    assert serve(policy, 0.8, 400, 32, sense).count(0) > 380
    depths = serve(policy, 0.8, 300, 1, sense)
    assert sum(map(bool, depths[150:])) > 140


def test_a_sense_that_praises_a_bad_draft_does_not_start_it_again_and_again() -> None:
    drafted = {}
    for name, sense in {"true": lambda p: p, "praises": lambda p: 0.95}.items():
        policy = ThroughputPolicy(3, ThroughputOptions(candidate_steps=LADDER), profile())
        drafted[name] = sum(map(bool, serve(policy, 0.03, 3000, 1, sense)))
    assert drafted["praises"] < drafted["true"] + 300
