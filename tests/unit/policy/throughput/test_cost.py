"""Round times: the base table, and measurements."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.policy.profile import CostProfile, ProfileCell, ProfileKey, ordered
from sglang_adaptive.policy.throughput.cost import (
    INTERPOLATED,
    MEASURED,
    PRIOR,
    PROFILE,
    CostModel,
    drafted_step,
    form_seconds,
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
    model.load(0.0, [[b, s, math.log(t / rows[b, s]), readings] for (b, s), t in cells.items()])


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
    cells = [[16, 3, 0.05, 31], [16, 5, -0.02, 31]]
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
    assert (model.source(16, 3), model.source(40, 3)) == (PROFILE, INTERPOLATED)
    load(model, {(16, 3): form_seconds(16, 3)})
    assert (model.source(16, 3), model.source(16, 2)) == (MEASURED, PROFILE)
    assert CostModel(LADDER, None).source(16, 3) == PRIOR


def test_small_changes_are_not_worth_a_new_table() -> None:
    model = CostModel(LADDER, full())
    assert model.load(0.0, [[16, 3, 0.1, 31]])
    assert not model.load(0.0, [[16, 3, 0.1005, 31]])
    assert model.load(0.0, [[16, 3, 0.12, 31]])


def test_a_ladder_without_two_depths_above_zero_has_no_drafted_step() -> None:
    assert drafted_step((0, 3), [0.02, 0.03]) == 0.0
