"""Round times: the base table, what was measured, and how readings are split between a cell and a common slowdown."""

from __future__ import annotations

import csv
import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.policy.profile.profile import CostProfile, ProfileCell, ProfileKey, ordered
from sglang_adaptive.policy.throughput.cost.form import form_seconds
from sglang_adaptive.policy.throughput.cost.model import INTERPOLATED, MEASURED, PRIOR, PROFILE, CostModel
from sglang_adaptive.policy.throughput.cost.readings import ABSENT_ROUNDS, STALL_ROUNDS, Readings

LADDER = (0, 1, 2, 3, 5, 7)
KEY = ProfileKey("target", "draft", "gpu", 1, 1, "fa3")
THREE = LADDER.index(3)
RECORDED = Path(__file__).parents[5] / "benchmarks" / "results" / "h200" / "rounds.csv"


def profile(cells: dict[tuple[int, int], float]) -> CostProfile:
    return CostProfile(KEY, ordered(ProfileCell(b, s, t) for (b, s), t in cells.items()))


def full(batches: tuple[int, ...] = (1, 4, 16, 64)) -> CostProfile:
    return profile({(b, s): form_seconds(b, s) for b in batches for s in LADDER})


def load(model: CostModel, cells: dict[tuple[int, int], float], readings: int = 31) -> None:
    """Tell *model* that it measured these seconds."""
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
    assert (model.source(16, 3), model.source(40, 3)) == (PROFILE, INTERPOLATED)
    load(model, {(16, 3): form_seconds(16, 3)})
    assert (model.source(16, 3), model.source(16, 2)) == (MEASURED, PROFILE)
    assert CostModel(LADDER, None).source(16, 3) == PRIOR


def test_small_changes_are_not_worth_a_new_table() -> None:
    model = CostModel(LADDER, full())
    assert model.load(0.0, [[16, 3, 3, 0.1, 31]])
    assert not model.load(0.0, [[16, 3, 3, 0.1005, 31]])
    assert model.load(0.0, [[16, 3, 3, 0.12, 31]])


def read(readings: Readings, steps: int, seconds: float, rounds: int, rng: random.Random | None = None) -> None:
    for _ in range(rounds):
        noise = 1.0 if rng is None else math.exp(rng.gauss(0.0, 0.02))
        readings.add((8, steps, steps), 0.0, seconds * noise)


def test_outliers_do_not_move_a_cell() -> None:
    readings = Readings()
    for index in range(40):
        readings.add((8, 3, 3), 0.0, 3.0 if index % 5 == 4 else 1.0)
    assert readings.cells[8, 3, 3].ratio == pytest.approx(0.0, abs=0.01)
    assert readings.drift == pytest.approx(0.0, abs=0.01)


def test_a_slowdown_seen_in_one_cell_is_taken_for_common() -> None:
    readings = Readings()
    read(readings, 3, 1.0, 50)
    read(readings, 3, 1.2, 50)
    assert readings.drift == pytest.approx(math.log(1.2), abs=0.01)
    assert readings.cells[8, 3, 3].ratio == pytest.approx(0.0, abs=0.01)


def test_a_cell_that_comes_back_is_compared_with_the_rounds_before() -> None:
    readings, rng = Readings(), random.Random(0)
    read(readings, 3, 1.0, 50, rng)
    read(readings, 5, 1.1, 20, rng)
    read(readings, 3, 1.3, ABSENT_ROUNDS + 50, rng)  # everything is slower now
    read(readings, 5, 1.43, 10, rng)
    ours, other = readings.cells[8, 5, 5], readings.cells[8, 3, 3]
    assert ours.ratio - other.ratio == pytest.approx(math.log(1.1), abs=0.03)


def test_a_stall_of_the_host_is_no_news_of_the_steps_that_met_it() -> None:
    readings = Readings()
    read(readings, 3, 1.0, 60)
    read(readings, 3, 2.0, STALL_ROUNDS - 10)
    assert readings.drift == pytest.approx(0.0, abs=0.01)
    read(readings, 3, 1.0, 10)
    read(readings, 3, 2.0, 2 * STALL_ROUNDS)  # this one goes on
    assert readings.drift == pytest.approx(math.log(2.0), abs=0.05)


@pytest.mark.parametrize("batch", [8, 32])
def test_a_gpu_that_is_faster_after_every_pause_changes_no_comparison(batch: int) -> None:
    """Steady load as an H200 served it, batch 32 and then 8: the rounds after a prefill take up to 13% less."""
    with RECORDED.open(newline="") as file:
        rounds = [{name: int(value) for name, value in row.items()} for row in csv.DictReader(file)]
    readings, model, compared = Readings(), CostModel(LADDER, None), []
    for index, row in enumerate(rounds):
        anchor, steps = model.anchor(row["batch_size"]), row["steps"]
        if row["timed"]:
            base = math.log(model.base.seconds(anchor)[LADDER.index(steps)])
            readings.add((anchor, steps, steps), base, row["microseconds"] / 1e6)
        else:
            readings.skip(steps)
        if index % 32 == 0 and index > 1000:  # kernels loaded until then: this server had no warm-up
            exported = readings.export()
            model.load(exported["drift"], exported["cells"])
            seconds = model.row(batch)[0]
            compared.append([math.log(seconds[LADDER.index(other)] / seconds[THREE]) for other in (2, 5, 7)])  # all ran
    assert len(compared) > 100
    assert max(max(column) - min(column) for column in zip(*compared, strict=True)) < 0.02


def test_readings_travel_as_builtins_and_stay_few() -> None:
    readings = Readings()
    read(readings, 3, 1.0, 5)
    size = len(json.dumps(readings.export()))
    read(readings, 3, 1.0, 5000)
    exported = readings.export()
    assert json.loads(json.dumps(exported)) == exported
    assert len(json.dumps(exported)) < size + 100
