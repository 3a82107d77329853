"""Times of rounds that verify fewer drafts than they make: guessed from others until they are measured."""

from __future__ import annotations

import math

import pytest

from sglang_adaptive.policy.profile.profile import CostProfile, ProfileCell, ProfileKey, ordered
from sglang_adaptive.policy.throughput.cost.model import CostModel
from sglang_adaptive.policy.throughput.cost.pairs import DRAFT_GROWTH, drafted_step, packing
from sglang_adaptive.policy.throughput.cost.round_times import RoundTimes

LADDER = (0, 1, 3, 5)
KEY = ProfileKey("target", "draft", "gpu", 1, 1, "fa3")
DRAFT, BATCH = 0.0004, 64


def seconds(batch: int, steps: int) -> float:
    return 0.02 + DRAFT * steps + 0.0001 * batch * (steps + 1)


def profile(*pairs: ProfileCell) -> CostProfile:
    cells = (ProfileCell(batch, steps, seconds(batch, steps)) for batch in (1, 16, BATCH) for steps in LADDER)
    return CostProfile(KEY, ordered([*cells, *pairs]))


def pair(model: CostModel, steps: int, budget: int, batch: int = BATCH) -> tuple[float, float]:
    return model.pair(batch, steps, budget, model.row(batch), model.base.seconds(batch))[:2]


def test_a_pair_takes_a_round_of_its_verified_drafts_and_the_further_drafts() -> None:
    model = CostModel(LADDER, profile())
    found, deviation = pair(model, 5, 1)
    # At batch 1 a further step costs its draft and one verified token.
    each = (DRAFT + 0.0001) * (1 + DRAFT_GROWTH * (BATCH - 1))
    assert found == pytest.approx(seconds(BATCH, 1) + 4 * each + packing(BATCH))
    assert model.base.pair_seconds(BATCH, 5, 1) == (pytest.approx(found), False)
    assert 0.02 < deviation < 0.1 and pair(model, 3, 1)[1] < deviation, "the more drafts, the less is known"


def test_what_was_measured_counts_and_others_stay_guesses() -> None:
    model = CostModel(LADDER, profile())
    before = {place: pair(model, *place)[0] for place in ((5, 1), (5, 3))}
    assert model.load(0.0, [[BATCH, 5, 1, math.log(1.3), 31]])
    assert not model.load(0.0, [[BATCH, 5, 1, math.log(1.3), 31]])
    found, deviation = pair(model, 5, 1)
    assert found == pytest.approx(1.3 * before[5, 1], rel=0.02) and deviation < 0.01
    assert pair(model, 5, 3)[0] == pytest.approx(before[5, 3])
    assert model.row(BATCH)[0] == pytest.approx(CostModel(LADDER, profile()).row(BATCH)[0]), "rectangles have their own"
    assert model.source(BATCH, LADDER.index(5), 1) == "measured" != model.source(BATCH, LADDER.index(5), 3)


def test_a_slowdown_of_all_rounds_is_none_of_a_pair_s() -> None:
    model = CostModel(LADDER, profile())
    cells = [[BATCH, steps, steps, 0.0, 31] for steps in LADDER]
    model.load(0.2, [*cells, [BATCH, 5, 1, 0.0, 31]])
    assert pair(model, 5, 1)[0] / model.row(BATCH)[0][1] == pytest.approx(
        pair(CostModel(LADDER, profile()), 5, 1)[0] / seconds(BATCH, 1), rel=0.01
    )


def test_a_profile_s_pair_is_the_base_of_its_readings() -> None:
    model = CostModel(LADDER, profile(ProfileCell(BATCH, 5, 0.05, 40, budget=1)))
    assert model.base.pair_seconds(BATCH, 5, 1) == (0.05, True)
    assert pair(model, 5, 1) == (pytest.approx(0.05), pytest.approx(0.02 * 2**0.5))
    assert model.base.pair_seconds(16, 5, 1) == pytest.approx(CostModel(LADDER, profile()).base.pair_seconds(16, 5, 1))


def test_only_steps_that_may_run_are_paired() -> None:
    times = RoundTimes(CostModel(LADDER, profile()))
    times.set_graph_sizes([BATCH])
    times.set_captured({BATCH: frozenset({0, 3, 5})})
    assert times.at(BATCH).packed == {}, "nobody allowed budgets"
    times.allow_budgets(True)
    found = {steps: [budget for budget, *_ in pairs] for steps, pairs in times.at(BATCH).packed.items()}
    assert found == {0: [], 3: [], 5: [3]}


def test_a_ladder_without_two_depths_above_zero_has_no_drafted_step() -> None:
    assert drafted_step((0, 3), [0.02, 0.03], 8) == 0.0
