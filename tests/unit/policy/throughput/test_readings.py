"""What two kinds of rounds differ by, from rounds close together; zero-step rounds are averaged over cycles."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_adaptive.policy.choice import drafted
from sglang_adaptive.policy.observation import RoundObservation, ZeroCycle
from sglang_adaptive.policy.throughput.cost import CostModel
from sglang_adaptive.policy.throughput.readings import (
    LONE_NOISES,
    LONE_SHARE,
    NEAR_ROUNDS,
    NOISE,
    SIDE,
    SINGLE,
    Readings,
    middle,
)
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
    cycle = rounds_between_outputs(requests, every, curious)
    rounds = list(served(requests, every, curious, 12 * cycle + 3))
    for seconds, extended in rounds:
        readings.add(requests, 0, 0.0, seconds, extended)
        times.add(RoundObservation(drafted(0), [0] * requests, requests, seconds, extended=extended))
    wanted = pytest.approx(mean_of(requests, every, curious))
    ((_, _, _, [(_, level, _, count)], pairs),) = readings.export()["places"]
    assert math.exp(level) == wanted and count >= 3 and not pairs
    (cell,) = times.as_list()
    assert cell["seconds"] == wanted
    assert cell["rounds"] == len(rounds) // cycle * cycle - cycle, "the start of the first cycle was not seen"


def test_a_change_while_serving_shows_at_once() -> None:
    times = RoundTimes()
    for every in (8, 3, 16):
        for seconds, extended in served(1, every, False, 40 * rounds_between_outputs(1, every, False)):
            times.add(RoundObservation(drafted(0), [0], 1, seconds, extended=extended))
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


def read(readings: Readings, kind: int, *seconds: float) -> None:
    for value in seconds:
        readings.add(8, kind, 0.0, value)


def pairs(readings: Readings) -> dict[tuple[int, int], tuple[float, float, int]]:
    """Return ratio, deviation and number of the differences by pair, at batch 8."""
    (place,) = readings.export()["places"]
    return {(low, high): (math.exp(middle), deviation, count) for low, high, middle, deviation, count, _ in place[4]}


def levels(readings: Readings) -> dict[int, tuple[float, float, int]]:
    (place,) = readings.export()["places"]
    return {kind: (math.exp(level), deviation, count) for kind, level, deviation, count in place[3]}


def test_the_middle_is_the_median_and_of_two_their_mean() -> None:
    assert middle([0.0, 5.0, 1.0]) == 1.0
    assert math.exp(middle([math.log(0.6), math.log(1.4)])) == pytest.approx(1.0)  # one late result


def test_a_late_result_changes_no_difference() -> None:
    readings = Readings()
    read(readings, 3, *[1.0] * 7, 4.0, 1.0)
    read(readings, 5, 1.2, 4.0, 1.2)
    assert pairs(readings)[3, 5][0] == pytest.approx(1.2)


def test_of_a_visit_the_readings_next_to_the_switch_count() -> None:
    readings = Readings()
    read(readings, 5, *[3.0] * 50, *[1.2] * SIDE)
    read(readings, 3, *[1.0] * SIDE, *[3.0] * 50)
    assert pairs(readings)[3, 5][0] == pytest.approx(1.2)


def test_a_wrong_difference_is_outvoted_by_those_before_and_after() -> None:
    readings = Readings()
    for wrong in (1.0, 1.0, 1.3, 1.0, 1.0, 1.0):
        read(readings, 3, *[1.0] * 20)
        read(readings, 5, *[1.2 * wrong] * SIDE, *[1.2] * 20)
        assert pairs(readings)[3, 5][0] == pytest.approx(1.2)
    assert pairs(readings)[3, 5][2] == SIDE < 11


def test_a_spell_that_slows_the_whole_machine_changes_no_difference() -> None:
    readings, rng = Readings(), random.Random(0)
    slow = 1.0
    for index in range(3000):
        if index % 37 == 0:
            slow = rng.choice([1.0, 1.0, 1.15, 1.4])
        # Spells begin and end within visits, and switches are within spells.
        read(readings, (3, 5, 2)[index // 25 % 3], slow * (1.0, 1.2, 0.9)[index // 25 % 3])
    found = {kinds: ratio for kinds, (ratio, *_) in pairs(readings).items()}
    assert found == pytest.approx({(3, 5): 1.2, (2, 5): 1.2 / 0.9, (2, 3): 1.0 / 0.9})


def test_the_two_sides_of_a_short_visit_count_once() -> None:
    """The machine slows down within the visit or at one end: the mean of both sides halves the error."""
    readings = Readings()
    read(readings, 3, *[1.0] * 20)
    read(readings, 5, 1.12, 1.12)
    one = pairs(readings)[3, 5]
    read(readings, 3, *[1.1] * 20)
    both = pairs(readings)[3, 5]
    assert (one[2], both[2]) == (1, 1)
    assert (one[0], both[0]) == (pytest.approx(1.12), pytest.approx(1.12 / math.sqrt(1.1)))
    assert both[1] > 1.1 * one[1]  # sides that differ are worth less


def test_a_large_lone_difference_is_doubted() -> None:
    """The machine may have slowed down just then: a second one that agrees shows that it did not."""
    readings, deviations = Readings(), []
    for _ in range(2):
        read(readings, 3, *[1.0] * 20)
        read(readings, 5, *[2.0] * SIDE)
        deviations.append(pairs(readings)[3, 5][1])
    assert deviations[0] == pytest.approx(LONE_SHARE * math.log(2.0))
    assert deviations[1] < 0.3 * deviations[0]


def test_a_long_visit_has_a_difference_at_either_end() -> None:
    readings = Readings()
    read(readings, 3, *[1.0] * 20)
    read(readings, 5, *[1.2] * SIDE)
    read(readings, 3, *[1.0] * 20)
    assert pairs(readings)[3, 5][2] == 2


def test_a_single_reading_counts_less_than_two() -> None:
    found = []
    for rounds in (1, 2):
        readings = Readings()
        read(readings, 3, *[1.0] * 20)
        read(readings, 5, *[1.2] * rounds)
        found.append(pairs(readings)[3, 5][1])
    assert found[1] == pytest.approx(SINGLE * found[0])


def test_two_differences_that_agree_start_a_pair_anew() -> None:
    readings = Readings()
    for ratio in (1.2, 1.2, 1.2, 1.6):
        read(readings, 3, *[1.0] * 20)
        read(readings, 5, *[ratio] * 20)
    assert pairs(readings)[3, 5][0] == pytest.approx(1.2)  # one may be wrong
    read(readings, 3, *[1.0] * 20)
    assert pairs(readings)[3, 5] == (pytest.approx(1.6), pytest.approx(LONE_NOISES * 1.48 * NOISE / 2, rel=0.1), 2)


@pytest.mark.parametrize(("away", "compared"), [(NEAR_ROUNDS - 1, True), (NEAR_ROUNDS, False)])
def test_rounds_far_apart_are_not_compared(away: int, compared: bool) -> None:
    readings = Readings()
    read(readings, 3, *[1.0] * 20)
    for _ in range(away):
        readings.skip(3)
    read(readings, 5, *[1.2] * 20)
    assert ((3, 5) in pairs(readings)) is compared
    assert levels(readings)[5][0] == pytest.approx(1.2)


def test_scatter_is_measured_and_says_how_far_to_trust() -> None:
    found = []
    for spread in (0.0, 0.1):
        readings, rng = Readings(), random.Random(1)
        for index in range(60):
            slow = rng.gauss(1.0, spread)  # of this kind alone, so that differences scatter as well
            read(readings, 3 if index % 2 else 5, *[1.0 if index % 2 else slow] * 20)
        found.append((readings.export()["noise"], pairs(readings)[3, 5][1], levels(readings)[5][1]))
    steady, loud = found
    assert steady[0] == 0.01 and 0.05 < loud[0] < 0.2
    assert loud[1] > 2 * steady[1] and loud[2] > 2 * steady[2]


def test_zero_steps_that_end_before_their_cycle_count() -> None:
    readings = Readings()
    read(readings, 3, *[1.2] * 20)
    for seconds in (1.0, 1.0, 1.4, 1.0):
        readings.add(8, 0, 0.0, seconds, extended=False)
    assert 0 not in levels(readings)
    read(readings, 3, 1.2)
    assert levels(readings)[0] == (pytest.approx(1.0), pytest.approx(levels(readings)[0][1]), 1)
    assert pairs(readings)[0, 3][0] == pytest.approx(1.2)
    for _ in range(3):
        readings.skip(0, extended=False)
    read(readings, 3, 1.2)
    assert levels(readings)[0][2] == 1  # none of them was timed


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
            model.load(**readings.export())
            seconds = model.row(batch)[0]
            compared.append([math.log(seconds[LADDER.index(other)] / seconds[THREE]) for other in (2, 5, 7)])  # all ran
    assert len(compared) > 100
    assert max(max(column) - min(column) for column in zip(*compared, strict=True)) < 0.04


def test_readings_travel_as_builtins_and_stay_few() -> None:
    readings = Readings()
    read(readings, 3, 1.0, 5)
    size = len(json.dumps(readings.export()))
    read(readings, 3, 1.0, 5000)
    exported = readings.export()
    assert json.loads(json.dumps(exported)) == exported
    assert len(json.dumps(exported)) < size + 100
