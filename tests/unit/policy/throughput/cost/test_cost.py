"""Round times: parametric form, base table, readings of the clock, and what they teach about other cells."""

from __future__ import annotations

import csv
import itertools
import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.policy.profile.profile import CostProfile, ProfileCell, ProfileKey, ordered
from sglang_adaptive.policy.throughput.cost.cost import INTERPOLATED, MEASURED, PRIOR, PROFILE, CostModel
from sglang_adaptive.policy.throughput.cost.cost_form import CostForm, fit
from sglang_adaptive.policy.throughput.cost.cost_smooth import monotone
from sglang_adaptive.policy.throughput.cost.readings import ABSENT_ROUNDS, RING, STALL_ROUNDS, Readings

ROOT = Path(__file__).parents[4]
LADDER = (0, 1, 2, 3, 5, 7)
KEY = ProfileKey("target", "draft", "gpu", 1, 1, "fa3")
TRUE = CostForm(0.005, 0.0002, 0.00002)


def profile(cells: dict[tuple[int, int], float]) -> CostProfile:
    return CostProfile(KEY, ordered(ProfileCell(b, s, t) for (b, s), t in cells.items()))


def full(batches: tuple[int, ...] = (1, 4, 16, 64), form: CostForm = TRUE) -> CostProfile:
    return profile({(b, s): form.seconds(b, s) for b in batches for s in LADDER})


def load(model: CostModel, cells: dict[tuple[int, int], float], readings: int = 31) -> None:
    """Tell *model* that it measured these seconds."""
    model.load(0.0, [[b, s, math.log(t) - model.log_base(b, s), readings, 0.0] for (b, s), t in cells.items()])


def test_the_form_is_recovered_from_cells_that_follow_it() -> None:
    found = fit([(b, s, TRUE.seconds(b, s)) for b in (1, 8, 64) for s in LADDER])
    for b, s in ((1, 0), (32, 3), (128, 7)):
        assert found.seconds(b, s) == pytest.approx(TRUE.seconds(b, s), rel=0.03)


@given(st.lists(st.tuples(st.integers(1, 512), st.integers(0, 16), st.floats(1e-4, 10.0)), max_size=12))
def test_the_form_is_never_negative(cells: list[tuple[int, int, float]]) -> None:
    found = fit(cells)
    assert min(found.fixed, found.per_step, found.per_token) >= 0.0 < found.seconds(1, 0)


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(0.1, 10)), min_size=1, max_size=30))
def test_monotone_is_sorted_keeps_the_mean_and_leaves_sorted_values(pairs: list[tuple[float, float]]) -> None:
    values, weights = [v for v, _ in pairs], [w for _, w in pairs]
    smooth = monotone(values, weights)
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(smooth))
    weigh = lambda xs: sum(x * w for x, w in zip(xs, weights, strict=True))  # noqa: E731
    assert weigh(smooth) == pytest.approx(weigh(values), abs=1e-6)
    assert monotone(sorted(values), weights) == pytest.approx(sorted(values))


def test_a_profile_is_exact_at_its_cells_and_linear_between_its_batches() -> None:
    model = CostModel(LADDER, full())
    assert model.row(16).seconds == pytest.approx([TRUE.seconds(16, s) for s in LADDER])
    assert model.row(40).seconds == pytest.approx([TRUE.seconds(40, s) for s in LADDER])


@given(
    cells=st.dictionaries(
        st.tuples(st.integers(1, 2000), st.integers(0, 12)), st.floats(1e-3, 1.0), min_size=0, max_size=10
    ),
    batch=st.integers(1, 100_000),
)
def test_any_partial_profile_gives_positive_times_that_grow_with_steps_where_anchored(
    cells: dict[tuple[int, int], float], batch: int
) -> None:
    row = CostModel(LADDER, profile(cells)).row(batch)
    assert all(math.isfinite(t) and t > 0 for t in row.seconds)
    assert all(d > 0 for d in row.deviation)


def test_measured_times_beat_the_profile_and_pull_their_neighbours() -> None:
    model = CostModel(LADDER, full())
    load(model, {(16, 3): 1.2 * TRUE.seconds(16, 3)})
    row, at = model.row(16), LADDER.index(3)
    assert row.seconds[at] == pytest.approx(1.2 * TRUE.seconds(16, 3), rel=0.02)
    assert TRUE.seconds(16, 2) < row.seconds[at - 1] < 1.2 * TRUE.seconds(16, 2)
    assert row.deviation[at] < 0.01 < row.deviation[at - 1]


def test_a_wrong_profile_is_doubted_where_it_was_not_checked() -> None:
    right, wrong = CostModel(LADDER, full()), CostModel(LADDER, full())
    load(right, {(16, s): TRUE.seconds(16, s) for s in (1, 3)})
    load(wrong, {(16, 1): 1.15 * TRUE.seconds(16, 1), (16, 3): 0.85 * TRUE.seconds(16, 3)})
    assert wrong.row(64).deviation[-1] > 3 * right.row(64).deviation[-1]


def test_one_reading_alone_is_hardly_believed() -> None:
    model = CostModel(LADDER, full())
    load(model, {(16, 3): 2.0 * TRUE.seconds(16, 3)}, readings=1)
    assert model.row(16).seconds[3] < 1.1 * TRUE.seconds(16, 3)


def test_without_a_profile_the_form_follows_what_was_measured() -> None:
    model, slow = CostModel(LADDER, None), CostForm(0.1, 0.01, 0.002)
    load(model, {(b, s): slow.seconds(b, s) for b in (1, 32) for s in (0, 3, 7)})
    assert model.row(8).seconds[4] == pytest.approx(slow.seconds(8, 5), rel=0.1)


def test_every_time_says_where_it_comes_from() -> None:
    model = CostModel(LADDER, full())
    assert (model.source(16, 3), model.source(40, 3)) == (PROFILE, INTERPOLATED)
    load(model, {(16, 3): TRUE.seconds(16, 3)})
    assert (model.source(16, 3), model.source(16, 2)) == (MEASURED, PROFILE)
    assert CostModel(LADDER, None).source(16, 3) == PRIOR


def test_small_changes_are_not_worth_a_new_table() -> None:
    model = CostModel(LADDER, full())
    cells = [[16, 3, 0.1, 31, 0.0]]
    assert model.load(0.0, cells)
    assert not model.load(0.0, [[16, 3, 0.1005, 31, 0.0]])
    assert model.load(0.0, [[16, 3, 0.12, 31, 0.0]])


def test_outliers_do_not_move_a_cell() -> None:
    readings, rng = Readings(), random.Random(1)
    for index in range(200):
        factor = 3.0 if index % 12 == 0 else rng.lognormvariate(0.0, 0.02)
        readings.add(16, 3, math.log(0.006), 0.006 * factor, index)
    cell = readings.cells[16, 3]
    assert abs(cell.median + cell.drift) < 0.02


@pytest.mark.parametrize(("rounds", "share"), [(1, 0.5), (400, 0.4)])
def test_a_slowdown_seen_in_one_cell_is_taken_for_common(rounds: int, share: float) -> None:
    """Most of it when it is sudden; of a slow one less, for that may be the cell's own."""
    readings, rng = Readings(), random.Random(2)
    for index in range(1200):
        slower = 1.0 + 0.2 * min(1.0, max(0.0, (index - 300) / rounds))
        readings.add(16, 3, 0.0, slower * rng.lognormvariate(0.0, 0.02), index)
    cell = readings.cells[16, 3]
    assert cell.median + cell.drift == pytest.approx(math.log(1.2), abs=0.02)
    assert readings.drift > share * math.log(1.2)


@pytest.mark.parametrize("spread", [0.01, 0.02, 0.04])
def test_the_scatter_of_rounds_moves_no_other_cell(spread: float) -> None:
    """Nor does it hide that everything becomes slower: by a fifth, which a dozen readings tell."""
    readings, rng = Readings(), random.Random(3)
    for index in range(30_000):
        readings.add(16, 3, 0.0, rng.lognormvariate(0.0, spread), index)
        assert abs(readings.drift) < 0.01, index
    for index in range(30_000, 30_012):
        readings.add(16, 3, 0.0, 1.2 * rng.lognormvariate(0.0, spread), index)
    assert readings.drift == pytest.approx(math.log(1.2), abs=0.05)


def test_what_changed_while_a_cell_was_away_is_its_own() -> None:
    readings = Readings()
    for index in range(40):
        readings.add(16, 3, 0.0, 1.0, index)
    for index in range(40, 60 + ABSENT_ROUNDS):
        readings.add(16, 1, 0.0, 1.0, index)
    for index in range(10):
        readings.add(16, 3, 0.0, 1.3, 60 + ABSENT_ROUNDS + index)
    assert readings.drift == pytest.approx(0.0, abs=0.01)
    assert readings.cells[16, 3].median == pytest.approx(math.log(1.3), abs=0.01)


def test_a_probe_that_is_disturbed_from_end_to_end_does_not_decide() -> None:
    """On an H200 one was read 12% too long, and the depth was taken for that slow until the load was over."""
    readings, index = Readings(), 0
    probed = []
    for steps, factor, rounds in ((1, 1.0, 40), (3, 1.0, 200), (1, 1.12, 3), (3, 1.0, 200), (1, 1.12, 3)):
        for _ in range(rounds):
            readings.add(8, steps, 0.0, factor, index)
            index += 1
        probed.append(readings.cells[8, 1].median)
    assert probed[2] == 0.0
    assert probed[4] == pytest.approx(math.log(1.12))  # a second one says that it was no accident


@pytest.mark.parametrize("away", [0, 2 * ABSENT_ROUNDS])
def test_a_stall_of_the_host_is_no_news_of_the_depth_that_met_it(away: int) -> None:
    """On an H200 one was taken for common, and 5 steps, which had met it, for 9% too slow until the next one came."""
    readings, index = Readings(), 0

    def rounds(count: int, batch: int, factor: float) -> None:
        nonlocal index
        for _ in range(count):
            readings.add(batch, 5, 0.0, factor, index)
            index += 1

    rounds(200, 8, 1.0)
    rounds(away, 7, 1.0)  # a dip that lasts, so that the first readings at 8 are checked against the old ones
    rounds(60, 8, 1.9)
    assert (readings.cells[8, 5].median, readings.drift) == (0.0, 0.0)
    rounds(40, 8, 1.0)
    rounds(60, 8, 1.9)  # another one: the two do not add up
    assert (readings.cells[8, 5].median, readings.drift) == (0.0, 0.0)
    rounds(STALL_ROUNDS + 20, 8, 1.9)  # this is none
    cell = readings.cells[8, 5]
    assert cell.median + readings.drift == pytest.approx(math.log(1.9))


def test_a_depth_that_is_left_in_a_slow_spell_is_not_taken_for_slow() -> None:
    """All depths share the spell. Dips of the batch interrupt the stay, and do not begin another."""
    readings, rng = Readings(), random.Random(5)
    for index in range(3000):
        spell = 1.03 if index > 2900 else 1.0  # too small a change to be told from the cell's own
        readings.add(6 if index % 17 == 0 else 8, 3, 0.0, spell * rng.lognormvariate(0.0, 0.01), index)
    assert readings.cells[8, 3].median == pytest.approx(0.0, abs=0.008)


def test_a_slowdown_that_ended_while_a_cell_was_away_is_over_for_all() -> None:
    readings, index = Readings(), 0
    for steps, factor in ((1, 1.0), (3, 1.0), (3, 1.5), (1, 1.0)):  # it began in the second cell and ended unseen
        for _ in range(2 * ABSENT_ROUNDS):
            readings.add(16, steps, 0.0, factor, index)
            index += 1
    assert readings.drift == pytest.approx(0.0, abs=0.01)
    assert readings.cells[16, 1].median == pytest.approx(0.0, abs=0.01)


def test_the_drift_does_not_grow_where_slow_spells_come_and_go() -> None:
    """A busy neighbour slows everything by half now and then, and what is timed changes meanwhile.

    A cell that was first timed while everything was slow looks fast later, so the drift may be twice what there is.
    """
    readings, rng = Readings(), random.Random(0)
    places, slow, left, place, most = [(1, 1), (1, 3), (4, 1), (4, 7)], False, 0, (1, 1), 0.0
    for index in range(50_000):
        slow ^= rng.random() < 1 / 150
        left -= 1
        if left < 0:
            place, left = rng.choice(places), rng.randint(80, 250)
        readings.add(*place, 0.0, (1.5 if slow else 1.0) * rng.lognormvariate(0.0, 0.03), index)
        most = max(most, abs(readings.drift))
    assert most < 2 * math.log(1.5) + 0.05


@pytest.mark.parametrize("few", [1, 2])
def test_a_wrong_first_reading_is_not_believed_of_other_cells(few: int) -> None:
    """As an H200 had it: 2 steps were read at 3.3 ms, and zero steps were believed to take 3.6 instead of 4.8."""
    model = CostModel(LADDER, None)
    known = {1: (0.00527, 31), 2: (0.00327, few), 3: (0.00579, 31), 7: (0.0068, 31)}
    cells = [[1, steps, math.log(time) - model.log_base(1, steps), n, 0.0] for steps, (time, n) in known.items()]
    model.load(0.0, cells)
    zero, one, two, three, *_ = model.row(1).seconds
    assert 0.0045 < zero <= one == pytest.approx(0.00527, rel=0.02)
    assert one <= two <= three == pytest.approx(0.00579, rel=0.02)


def test_a_gpu_that_is_faster_after_every_pause_does_not_move_the_times_of_other_cells() -> None:
    """Steady load as an H200 served it, batch 32 and then 8: the rounds after a prefill take up to 13% less."""
    with (ROOT / "benchmarks/results/h200/rounds.csv").open(newline="") as file:
        rounds = [{name: int(value) for name, value in row.items()} for row in csv.DictReader(file)]
    readings, model, drifts = Readings(), CostModel(LADDER, None), []
    for index, row in enumerate(rounds):
        if row["timed"]:
            anchor, logs = model.bin(row["batch_size"])
            base = logs[LADDER.index(row["steps"])]
            readings.add(anchor, row["steps"], base, row["microseconds"] / 1e6, index)
        else:
            readings.skip(row["steps"])
        drifts.append(readings.drift)
    kernels_loaded = 1000  # this server had no warm-up
    assert max(map(abs, drifts[kernels_loaded:])) < 0.01


def test_readings_stay_few_and_travel_as_builtins() -> None:
    readings = Readings()
    for index in range(5000):
        readings.add(16, 3, 0.0, 1.0, index)
    assert readings.cells[16, 3].fresh == RING
    exported = readings.export()
    assert json.loads(json.dumps(exported)) == exported
