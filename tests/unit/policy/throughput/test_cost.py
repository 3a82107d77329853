"""Round times: the base table, measurements, and rounds that verify fewer drafts than they make."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.policy.profile import CostProfile, ProfileCell, ProfileKey, ordered
from sglang_adaptive.policy.throughput.cost import (
    DRAFT_GROWTH,
    INTERPOLATED,
    MEASURED,
    PRIOR,
    PROFILE,
    CostModel,
    RoundTimeTable,
    drafted_step,
    form_seconds,
    packing,
)

LADDER = (0, 1, 2, 3, 5, 7)
KEY = ProfileKey("target", "draft", "gpu", 1, 1, "fa3")
THREE = LADDER.index(3)


def profile(cells: dict[tuple[int, int], float]) -> CostProfile:
    return CostProfile(KEY, ordered(ProfileCell(b, s, t) for (b, s), t in cells.items()))


def full(batches: tuple[int, ...] = (1, 4, 16, 64)) -> CostProfile:
    return profile({(b, s): form_seconds(b, s) for b in batches for s in LADDER})


def load(model: CostModel, cells: dict[tuple[int, int], float], readings: int = 31) -> None:
    """Give *model* these seconds as measurements."""
    rows = {(b, s): model.base.seconds(b)[LADDER.index(s)] for b, s in cells}
    model.load(0.0, [[b, s, s, math.log(t / rows[b, s]), readings] for (b, s), t in cells.items()])


def test_a_profile_is_exact_at_its_cells_and_linear_between_its_batches() -> None:
    model = CostModel(LADDER, full())
    assert model.row(16)[0] == pytest.approx([form_seconds(16, s) for s in LADDER])
    assert model.row(40)[0] == pytest.approx([form_seconds(40, s) for s in LADDER])


@given(
    cells=st.dictionaries(
        st.tuples(st.integers(1, 2000), st.integers(0, 12)), st.floats(1e-3, 1.0), min_size=0, max_size=10
    ),
    batch=st.integers(1, 100_000),
)
def test_any_partial_profile_gives_positive_times(cells: dict[tuple[int, int], float], batch: int) -> None:
    seconds, deviations = CostModel(LADDER, profile(cells)).row(batch)
    assert all(math.isfinite(t) and t > 0 for t in seconds)
    assert all(d > 0 for d in deviations)


def test_measured_times_beat_the_profile_and_pull_their_neighbours() -> None:
    model = CostModel(LADDER, full())
    load(model, {(16, 3): 1.2 * form_seconds(16, 3)})
    seconds, deviations = model.row(16)
    assert seconds[THREE] == pytest.approx(1.2 * form_seconds(16, 3), rel=0.03)
    assert form_seconds(16, 2) < seconds[THREE - 1] < 1.2 * form_seconds(16, 2)
    assert deviations[THREE] < 0.01 < deviations[THREE - 1]


def test_a_wrong_profile_is_doubted_where_it_was_not_checked() -> None:
    right, wrong = CostModel(LADDER, full()), CostModel(LADDER, full())
    load(right, {(16, s): form_seconds(16, s) for s in (1, 3)})
    load(wrong, {(16, 1): 1.15 * form_seconds(16, 1), (16, 3): 0.85 * form_seconds(16, 3)})
    assert wrong.row(64)[1][-1] > 2 * right.row(64)[1][-1]


def test_a_slowdown_that_all_share_changes_no_comparison() -> None:
    model = CostModel(LADDER, full())
    cells = [[16, 3, 3, 0.05, 31], [16, 5, 5, -0.02, 31]]
    model.load(0.0, cells)
    before = model.row(16)[0]
    model.load(0.3, cells)
    after = model.row(16)[0]
    at = LADDER.index(5)
    assert after[THREE] / after[at] == pytest.approx(before[THREE] / before[at], rel=0.01)


def test_one_reading_alone_is_hardly_believed() -> None:
    model = CostModel(LADDER, full())
    load(model, {(16, 3): 2.0 * form_seconds(16, 3)}, readings=1)
    assert model.row(16)[0][THREE] < 1.1 * form_seconds(16, 3)
    assert model.row(16)[0][THREE - 1] == pytest.approx(form_seconds(16, 2))


def test_every_time_says_where_it_comes_from() -> None:
    model = CostModel(LADDER, full())
    assert (model.source(16, (3, 3)), model.source(40, (3, 3))) == (PROFILE, INTERPOLATED)
    load(model, {(16, 3): form_seconds(16, 3)})
    assert (model.source(16, (3, 3)), model.source(16, (2, 2))) == (MEASURED, PROFILE)
    assert CostModel(LADDER, None).source(16, (3, 3)) == PRIOR


def test_small_changes_are_not_worth_a_new_table() -> None:
    model = CostModel(LADDER, full())
    assert model.load(0.0, [[16, 3, 3, 0.1, 31]])
    assert not model.load(0.0, [[16, 3, 3, 0.1005, 31]])
    assert model.load(0.0, [[16, 3, 3, 0.12, 31]])


FOUR = (0, 1, 3, 5)
KEY = ProfileKey("target", "draft", "gpu", 1, 1, "fa3")
DRAFT, BATCH = 0.0004, 64


def seconds(batch: int, steps: int) -> float:
    return 0.02 + DRAFT * steps + 0.0001 * batch * (steps + 1)


def paired(*pairs: ProfileCell) -> CostProfile:
    cells = (ProfileCell(batch, steps, seconds(batch, steps)) for batch in (1, 16, BATCH) for steps in FOUR)
    return CostProfile(KEY, ordered([*cells, *pairs]))


def pair(model: CostModel, steps: int, budget: int, batch: int = BATCH) -> tuple[float, float]:
    return model.with_budget(batch, (steps, budget), model.row(batch), model.base.seconds(batch))[:2]


def test_a_pair_takes_a_round_of_its_verified_drafts_and_the_further_drafts() -> None:
    model = CostModel(FOUR, paired())
    found, deviation = pair(model, 5, 1)
    # At batch 1 another step costs its draft and one verified token.
    each = (DRAFT + 0.0001) * (1 + DRAFT_GROWTH * (BATCH - 1))
    assert found == pytest.approx(seconds(BATCH, 1) + 4 * each + packing(BATCH))
    assert model.base.shape_seconds(BATCH, (5, 1)) == (pytest.approx(found), False)
    assert 0.02 < deviation < 0.1 and pair(model, 3, 1)[1] < deviation, "the more drafts, the less is known"


def test_what_was_measured_counts_and_others_stay_guesses() -> None:
    model = CostModel(FOUR, paired())
    before = {place: pair(model, *place)[0] for place in ((5, 1), (5, 3))}
    assert model.load(0.0, [[BATCH, 5, 1, math.log(1.3), 31]])
    assert not model.load(0.0, [[BATCH, 5, 1, math.log(1.3), 31]])
    found, deviation = pair(model, 5, 1)
    assert found == pytest.approx(1.3 * before[5, 1], rel=0.02) and deviation < 0.01
    assert pair(model, 5, 3)[0] == pytest.approx(before[5, 3])
    assert model.row(BATCH)[0] == pytest.approx(CostModel(FOUR, paired()).row(BATCH)[0]), "rectangles have their own"
    assert model.source(BATCH, (5, 1)) == "measured" != model.source(BATCH, (5, 3))


def test_a_slowdown_of_all_rounds_is_none_of_a_pair_s() -> None:
    model = CostModel(FOUR, paired())
    cells = [[BATCH, steps, steps, 0.0, 31] for steps in FOUR]
    model.load(0.2, [*cells, [BATCH, 5, 1, 0.0, 31]])
    assert pair(model, 5, 1)[0] / model.row(BATCH)[0][1] == pytest.approx(
        pair(CostModel(FOUR, paired()), 5, 1)[0] / seconds(BATCH, 1), rel=0.01
    )


def test_a_profile_s_pair_is_the_base_of_its_readings() -> None:
    model = CostModel(FOUR, paired(ProfileCell(BATCH, 5, 0.05, 40, budget=1)))
    assert model.base.shape_seconds(BATCH, (5, 1)) == (0.05, True)
    assert pair(model, 5, 1) == (pytest.approx(0.05), pytest.approx(0.02 * 2**0.5))
    assert model.base.shape_seconds(16, (5, 1)) == pytest.approx(
        CostModel(FOUR, paired()).base.shape_seconds(16, (5, 1))
    )


def test_only_steps_that_may_run_are_paired() -> None:
    times = RoundTimeTable(CostModel(FOUR, paired()))
    times.set_graph_sizes([BATCH])
    times.set_captured({BATCH: frozenset({0, 3, 5})})
    assert times.at(BATCH).packed == {}, "nobody allowed budgets"
    times.allow_budgets(True)
    found = {steps: [budget for budget, *_ in pairs] for steps, pairs in times.at(BATCH).packed.items()}
    assert found == {0: [], 3: [], 5: [3]}


def test_a_ladder_without_two_depths_above_zero_has_no_drafted_step() -> None:
    assert drafted_step((0, 3), [0.02, 0.03]) == 0.0
