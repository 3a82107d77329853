"""Round times: the base table, the fit to measurements, and what they say of other batch sizes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.policy.profile import CostProfile, ProfileCell, ProfileKey, ordered
from sglang_adaptive.policy.throughput.base_cost import drafted_step, form_seconds
from sglang_adaptive.policy.throughput.cost import INTERPOLATED, MEASURED, PRIOR, PROFILE, CostModel
from sglang_adaptive.policy.throughput.fit import Evidence, Factor, fit

LADDER = (0, 1, 2, 3, 5, 7)
KEY = ProfileKey("target", "draft", "gpu", 1, 1, "fa3")
THREE = LADDER.index(3)


def profile(cells: dict[tuple[int, int], float]) -> CostProfile:
    return CostProfile(KEY, ordered(ProfileCell(b, s, t) for (b, s), t in cells.items()))


def full(batches: tuple[int, ...] = (1, 4, 16, 64)) -> CostProfile:
    return profile({(b, s): form_seconds(b, s) for b in batches for s in LADDER})


def load(
    model: CostModel,
    cells: dict[tuple[int, int], float],
    deviation: float = 0.01,
    differences: int = 9,
    by: float = 1.0,
) -> bool:
    """Give *model* these seconds, times *by*, as levels and as differences from the first kind of each batch size."""
    places = []
    for batch in sorted({b for b, _ in cells}):
        base = dict(zip(LADDER, model.base.seconds(batch), strict=True))
        own = [[s, math.log(by * t / base[s]), 0.1, 9 * differences] for (b, s), t in cells.items() if b == batch]
        pairs = [[own[0][0], s, m := level - own[0][1], deviation, differences, m] for s, level, *_ in own[1:]]
        places.append([batch, *own[0][:2], own, pairs])
    return model.load(0.02, places)


def test_a_profile_is_exact_at_its_cells_and_linear_between_its_batches() -> None:
    model = CostModel(LADDER, full())
    assert model.row(16)[0] == pytest.approx([form_seconds(16, s) for s in LADDER])
    assert model.row(32)[0] == pytest.approx([form_seconds(32, s) for s in LADDER])


@given(
    cells=st.dictionaries(
        st.tuples(st.integers(1, 2000), st.integers(0, 12)), st.floats(1e-3, 1.0), min_size=0, max_size=10
    ),
    batch=st.integers(1, 100_000),
)
def test_any_partial_profile_gives_positive_times(cells: dict[tuple[int, int], float], batch: int) -> None:
    seconds, deviations, _ = CostModel(LADDER, profile(cells)).row(batch)
    assert all(math.isfinite(t) and t > 0 for t in seconds) and all(d > 0 for d in deviations)


OWN = [(3, 0.3, 0.05, 9), (5, 0.5, 0.2, 9)]


@pytest.mark.parametrize("latest", [3, 5])
def test_facts_that_agree_are_fitted_exactly(latest: int) -> None:
    """The precision of x5 - x3 is that of the pair, and of both sides in series: 2500 + 500 * 125 / 625."""
    found = fit(Evidence(latest, OWN, [(3, 5, 0.2, 0.02, 3, 0.2)]), {3: (0.0, 0.1), 5: (0.2, 0.1)})
    assert found.ratio == pytest.approx({latest: 0.0, 8 - latest: 0.2 if latest == 3 else -0.2}, abs=1e-6)
    assert found.deviation == pytest.approx({latest: 0.0, 8 - latest: 2600**-0.5}, abs=1e-4)


def test_a_kind_that_never_ran_has_its_shape_around_the_level() -> None:
    found = fit(Evidence(3, OWN[:1], []), {3: (0.0, 0.1), 7: (0.05, 0.1)})
    assert found.ratio == pytest.approx({3: 0.0, 7: 0.05}, abs=1e-3)
    assert found.deviation[7] == pytest.approx(math.sqrt(0.1**2 + 1.0 / (1.0 / 0.05**2 + 1.0 / 0.1**2)))


def test_of_facts_that_contradict_each_other_the_less_likely_lose() -> None:
    own = [(kind, 0.1 * at, 0.1, 9) for at, kind in enumerate((1, 3, 5))]
    right, wrong = [(1, 3, 0.1, 0.02, 3, 0.1), (3, 5, 0.1, 0.02, 3, 0.1)], (1, 5, 0.6, 0.02, 3, 0.6)
    agree, torn = (fit(Evidence(1, own, pairs), {}) for pairs in (right, [*right, wrong]))
    assert torn.ratio[5] == pytest.approx(0.2, abs=0.02)  # their mean is 0.33
    assert torn.deviation[5] > 2 * agree.deviation[5]


def test_a_level_from_long_ago_does_not_outweigh_a_difference() -> None:
    found = fit(Evidence(3, [(3, 0.0, 0.05, 31), (5, 0.5, 0.05, 31)], [(3, 5, 0.1, 0.01, 3, 0.1)]), {})
    assert found.ratio[5] == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("error", [-0.3, 0.2, 0.3])
def test_one_difference_overrules_a_wrong_profile(error: float) -> None:
    model = CostModel(LADDER, full())
    load(model, {(16, 3): form_seconds(16, 3), (16, 7): math.exp(error) * form_seconds(16, 7)}, 0.07, 1)
    seconds = model.row(16)[0]
    off = math.log(seconds[-1] / seconds[THREE] * form_seconds(16, 3) / form_seconds(16, 7))
    assert 0.7 < off / error < 1.01


def test_measured_times_beat_the_profile_and_pull_those_of_other_batch_sizes() -> None:
    model = CostModel(LADDER, full())
    load(model, {(16, 1): form_seconds(16, 1), (16, 3): 1.2 * form_seconds(16, 3)})
    seconds, deviations, _ = model.row(16)
    assert seconds[THREE] == pytest.approx(1.2 * form_seconds(16, 3), rel=0.03)
    assert deviations[THREE] < 0.02 < deviations[-1]
    near, far = [model.row(n)[0][THREE] / model.row(n)[0][1] for n in (24, 512)]
    assert 1.0 < far * form_seconds(512, 1) / form_seconds(512, 3) < near * form_seconds(24, 1) / form_seconds(24, 3)
    assert near < 1.2 * form_seconds(24, 3) / form_seconds(24, 1)


def test_a_wrong_profile_is_doubted_where_it_was_not_checked() -> None:
    right, wrong = CostModel(LADDER, full()), CostModel(LADDER, full())
    load(right, {(16, s): form_seconds(16, s) for s in (1, 3)})
    load(wrong, {(16, 1): 1.15 * form_seconds(16, 1), (16, 3): 0.85 * form_seconds(16, 3)})
    assert wrong.surprise > 1.5 > 1 > right.surprise
    assert wrong.row(64)[1][-1] > 2 * right.row(64)[1][-1]


def test_a_slowdown_that_all_share_changes_no_comparison_at_any_batch_size() -> None:
    models = [CostModel(LADDER, full()) for _ in range(2)]
    for model, by in zip(models, (1.0, 1.35), strict=True):
        load(model, {(16, 3): form_seconds(16, 3), (16, 5): 1.1 * form_seconds(16, 5)}, by=by)
    for batch in (8, 16, 20):
        before, after = [model.row(batch)[0] for model in models]
        assert after == pytest.approx([1.35 * seconds for seconds in before], rel=0.01)
        assert models[1].lookup(16, 15)[0] > 1.3 * models[0].lookup(16, 15)[0] > models[0].lookup(16, 15)[1]


def test_every_time_says_where_it_comes_from() -> None:
    model = CostModel(LADDER, full())
    assert (model.source(16, 3), model.source(40, 3)) == (PROFILE, INTERPOLATED)
    load(model, {(16, 3): form_seconds(16, 3)})
    assert (model.source(16, 3), model.source(16, 2)) == (MEASURED, PROFILE)
    assert CostModel(LADDER, None).source(16, 3) == PRIOR


@pytest.mark.parametrize(("batch", "sure"), [(56, True), (55, False)])
def test_between_anchors_times_are_those_of_the_one_where_readings_count(batch: int, sure: bool) -> None:
    model = CostModel(LADDER, profile({(48, s): (1.0 + s) * form_seconds(48, s) for s in LADDER}))
    load(model, {(64, s): form_seconds(64, s) for s in LADDER})
    seconds, deviations, _ = model.row(batch)
    assert (seconds[THREE] == pytest.approx(form_seconds(batch, 3), rel=0.02)) is sure is (deviations[THREE] < 0.02)


def test_a_table_is_new_only_if_a_time_changed() -> None:
    model, cells = CostModel(LADDER, full()), {(16, 3): form_seconds(16, 3), (16, 5): form_seconds(16, 5)}
    assert load(model, cells)
    assert not load(model, cells)
    assert load(model, {**cells, (16, 5): 1.01 * form_seconds(16, 5)})
    assert load(model, {**cells, (16, 5): 1.01 * form_seconds(16, 5)}, differences=8)
    assert model.readings == {(16, 3): 72, (16, 5): 72} and model.noise == 0.02


def test_a_ladder_without_two_depths_above_zero_has_no_drafted_step() -> None:
    assert drafted_step((0, 3), [0.02, 0.03]) == 0.0


@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_factor_solves_its_equations_and_has_the_variances_of_the_inverse(size: int) -> None:
    root = np.random.default_rng(size).normal(size=(size, size))
    matrix = root @ root.T + 0.1 * np.eye(size)
    factor, right, inverse = Factor(matrix.tolist()), root[0].tolist(), np.linalg.inv(matrix)
    assert factor.solve(right) == pytest.approx(np.linalg.solve(matrix, right))
    for one, other in itertools.permutations(range(size), 2):
        expected = inverse[one, one] + inverse[other, other] - 2.0 * inverse[one, other]
        assert factor.variance(one, other) == pytest.approx(expected)
