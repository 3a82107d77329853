"""How readings split between a cell and a common slowdown; zero-step rounds are averaged over real cycles."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_adaptive.policy.observation import RoundObservation, ZeroCycle
from sglang_adaptive.policy.throughput.cost import CostModel
from sglang_adaptive.policy.throughput.readings import ABSENT_ROUNDS, STALL_ROUNDS, Readings
from sglang_adaptive.runtime.pending_drafts import extend_schedule, rounds_between_outputs
from sglang_adaptive.runtime.round_times import RoundTimes

LADDER = (0, 1, 2, 3, 5, 7)
THREE = LADDER.index(3)
RECORDED = Path(__file__).parents[4] / "benchmarks" / "results" / "h200" / "rounds.csv"
ROUND, WRITE, EXTEND = 1.0, 0.25, 0.6
"""A round's time, and the time that a write and an extend add."""


def served(requests: int, every: int, curious: bool, rounds: int) -> Iterator[tuple[float, bool]]:
    """Yield seconds, and whether the extend ran, of zero-step rounds like those of ``DeferredDraftExtend``."""
    owed = writes = 0
    for _ in range(rounds):
        owed += 1
        held, most_writes = extend_schedule(requests, every, curious)
        if owed < held:
            yield ROUND, False
        elif writes < most_writes:
            owed, writes = 1, writes + 1  # the latest row stays owed
            yield ROUND + WRITE, False
        else:
            owed = writes = 0
            yield ROUND + EXTEND, True


def mean_of(requests: int, every: int, curious: bool) -> float:
    """Return a round's average time in the long run."""
    cycle = rounds_between_outputs(requests, every, curious)
    taken = list(served(requests, every, curious, 50 * cycle))
    assert sum(extended for _, extended in taken) == 50
    return sum(seconds for seconds, _ in taken) / len(taken)


@pytest.mark.parametrize("curious", [False, True], ids=["content", "curious"])
@pytest.mark.parametrize("requests", [1, 2, 8, 32])
@pytest.mark.parametrize("every", [1, 2, 3, 8, 16, 33])
def test_the_mean_is_that_of_the_long_run(every: int, requests: int, curious: bool) -> None:
    readings, times = Readings(), RoundTimes()
    rounds = list(served(requests, every, curious, 12 * rounds_between_outputs(requests, every, curious) + 3))
    for seconds, extended in rounds:
        readings.add(requests, 0, 0.0, seconds, extended)
        times.add(RoundObservation(0, [0] * requests, requests, seconds, extended=extended))
    wanted = pytest.approx(mean_of(requests, every, curious))
    assert math.exp(readings.cells[requests, 0].ratio) == wanted
    assert readings.cells[requests, 0].readings >= 3 and readings.drift == pytest.approx(0.0, abs=1e-12)
    (cell,) = times.as_list()
    assert cell["seconds"] == wanted


def test_a_change_while_serving_shows_at_once() -> None:
    times = RoundTimes()
    for every in (8, 3, 16):
        for seconds, extended in served(1, every, False, 40 * rounds_between_outputs(1, every, False)):
            times.add(RoundObservation(0, [0], 1, seconds, extended=extended))
        (cell,) = times.as_list()
        assert cell["seconds"] == pytest.approx(mean_of(1, every, False))


def told(cycle: ZeroCycle, rounds: list[tuple[float | None, bool]]) -> list[tuple[float, int] | None]:
    return [cycle.add(seconds, extended) for seconds, extended in rounds]


def test_a_cycle_whose_beginning_was_not_seen_says_nothing() -> None:
    cycle = ZeroCycle()
    assert told(cycle, [(1.0, False), (3.0, True)]) == [None, None]
    assert told(cycle, [(1.0, False), (1.0, False), (4.0, True)]) == [None, None, (2.0, 3)]


def test_a_drafted_round_begins_one() -> None:
    cycle = ZeroCycle()
    told(cycle, [(1.0, False), (1.0, False)])
    cycle.begin()
    assert told(cycle, [(None, False), (1.0, False), (1.0, False), (4.0, True)])[-1] == (1.75, 3)


def test_rounds_that_were_not_timed_count_as_the_others_unless_they_ran_the_extend() -> None:
    cycle = ZeroCycle()
    cycle.begin()
    assert told(cycle, [(1.0, False), (None, False), (1.0, False), (3.0, True)])[-1] == (1.5, 3)
    assert told(cycle, [(1.0, False), (1.0, False), (None, True)])[-1] is None
    assert told(cycle, [(None, False), (None, False), (None, False), (3.0, True)])[-1] is None
    assert told(cycle, [(2.0, True)]) == [(2.0, 1)]


def test_rounds_of_another_batch_size_count_as_not_timed() -> None:
    cycle = ZeroCycle()
    cycle.begin()
    told(cycle, [(9.0, False)])
    cycle.restart()
    assert told(cycle, [(1.0, False), (1.0, False), (3.0, True)])[-1] == (1.5, 3)


def read(readings: Readings, steps: int, seconds: float, rounds: int, rng: random.Random | None = None) -> None:
    for _ in range(rounds):
        noise = 1.0 if rng is None else math.exp(rng.gauss(0.0, 0.02))
        readings.add(8, steps, 0.0, seconds * noise)


def test_outliers_do_not_move_a_cell() -> None:
    readings = Readings()
    for index in range(40):
        readings.add(8, 3, 0.0, 3.0 if index % 5 == 4 else 1.0)
    assert readings.cells[8, 3].ratio == pytest.approx(0.0, abs=0.01)
    assert readings.drift == pytest.approx(0.0, abs=0.01)


def test_a_slowdown_seen_in_one_cell_is_taken_for_common() -> None:
    readings = Readings()
    read(readings, 3, 1.0, 50)
    read(readings, 3, 1.2, 50)
    assert readings.drift == pytest.approx(math.log(1.2), abs=0.01)
    assert readings.cells[8, 3].ratio == pytest.approx(0.0, abs=0.01)


def test_a_cell_that_comes_back_is_compared_with_the_rounds_before() -> None:
    readings, rng = Readings(), random.Random(0)
    read(readings, 3, 1.0, 50, rng)
    read(readings, 5, 1.1, 20, rng)
    read(readings, 3, 1.3, ABSENT_ROUNDS + 50, rng)  # everything is slower now
    read(readings, 5, 1.43, 10, rng)
    ours, other = readings.cells[8, 5], readings.cells[8, 3]
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
    """Steady load as on an H200, batch 32 and then 8: rounds after a prefill take up to 13% less."""
    with RECORDED.open(newline="") as file:
        rounds = [{name: int(value) for name, value in row.items()} for row in csv.DictReader(file)]
    readings, model, compared = Readings(), CostModel(LADDER, None), []
    for index, row in enumerate(rounds):
        anchor, steps = model.anchor(row["batch_size"]), row["steps"]
        if row["timed"]:
            base = math.log(model.base.seconds(anchor)[LADDER.index(steps)])
            readings.add(anchor, steps, base, row["microseconds"] / 1e6)
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
