"""Zero-step rounds are averaged over real cycles, however long: see policy/throughput/cost/zero_cycle.py."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.throughput.cost.readings import Readings
from sglang_adaptive.policy.throughput.cost.zero_cycle import ZeroCycle
from sglang_adaptive.runtime.extend_schedule import extend_schedule, rounds_between_outputs
from sglang_adaptive.runtime.round_times import RoundTimes

ROUND, WRITE, EXTEND = 1.0, 0.25, 0.6
"""What a round takes, and what a write and an extend add."""


def served(requests: int, every: int, curious: bool, rounds: int) -> Iterator[tuple[float, bool]]:
    """Yield seconds, and whether the extend ran, of zero-step rounds as ``DeferredDraftExtend`` runs them."""
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
    """Return what a round takes in the long run."""
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
        readings.add((requests, 0, 0), 0.0, seconds, extended)
        times.add(RoundObservation(0, [0] * requests, requests, seconds, extended=extended))
    wanted = pytest.approx(mean_of(requests, every, curious))
    assert math.exp(readings.cells[requests, 0, 0].ratio) == wanted
    assert readings.cells[requests, 0, 0].readings >= 3 and readings.drift == pytest.approx(0.0, abs=1e-12)
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
