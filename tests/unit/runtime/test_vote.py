"""The depth that gathered rows agree on."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sglang_adaptive.runtime.joint_steps import MOST, SECOND, Ballot, agree, believed, forced, read, silent, width

DEPTHS = (0, 2, 5)


def rank(
    requests: int, rounds: tuple[float, ...], ms: tuple[float, ...], live: int = 0, probe: int | None = None
) -> list[int]:
    """Return the row of a rank whose outputs take these rounds at each depth, of these milliseconds."""
    seconds = {depth: value / 1000 for depth, value in zip(DEPTHS, ms, strict=True)}
    return believed(DEPTHS, live, requests, dict(zip(DEPTHS, rounds, strict=True)), seconds, probe).row()


def agreed(rows: list[list[int]], depths: tuple[int, ...], launch_steps: int) -> int:
    return agree(rows, depths, launch_steps).steps


HARD, EASY = (1.0, 0.85, 0.84), (1.0, 0.36, 0.2)
EARLY, LATE = (10.0, 11.0, 12.0), (20.0, 30.0, 60.0)


def test_ranks_without_a_say_change_nothing() -> None:
    voter = rank(4, EASY, EARLY)
    rows = [silent(DEPTHS).row(), voter, silent(DEPTHS, 5, 900, failed=True).row()]
    assert agreed(rows, DEPTHS, 2) == agreed([voter], DEPTHS, 2)


def test_without_a_say_anywhere_the_launch_steps_run() -> None:
    assert agreed([], DEPTHS, 2) == 2
    assert agreed([silent(DEPTHS).row(), silent(DEPTHS, 5, 7, failed=True).row()], DEPTHS, 2) == 2


def test_a_depth_that_cannot_run_at_the_largest_batch_is_not_run() -> None:
    large = rank(20, EASY, EARLY)
    large[width(DEPTHS) - 1] = 0
    assert agreed([large, rank(2, EASY, EARLY)], DEPTHS, 0) == 2


def test_forced_steps_are_run_once_the_largest_rank_has_heard_of_them() -> None:
    heard = forced(DEPTHS, 5, 20, 0).row()
    assert agreed([heard, rank(2, EASY, EARLY)], DEPTHS, 2) == 0
    assert agreed([forced(DEPTHS, 5, 20, 3).row()], DEPTHS, 2) == 2  # no such depth


def test_the_first_of_the_largest_batches_that_have_a_say_leads() -> None:
    small, large = rank(2, EASY, EARLY), rank(20, HARD, LATE)
    failed = silent(DEPTHS, 5, 90, failed=True).row()
    assert agree([failed, small, large, large], DEPTHS, 2).leader == 2
    assert agree([silent(DEPTHS).row(), failed], DEPTHS, 2).leader is None


def test_a_probe_changes_no_agreement_and_is_run_where_it_can_be() -> None:
    for probe in (0, 2, 5):
        row = rank(20, EASY, EARLY, probe=probe)
        found = agree([row], DEPTHS, 2)
        assert (found.steps, found.running) == (5, probe)
        row[width(DEPTHS) - len(DEPTHS) + DEPTHS.index(probe)] = 0
        found = agree([row], DEPTHS, 2)
        assert found.running == found.steps != probe
    for probe in (None, 3):  # no probe, and no such depth
        assert agree([rank(20, EASY, EARLY, probe=probe)], DEPTHS, 2).running == 5


def test_of_equally_fast_depths_the_live_one_stays() -> None:
    same = Ballot(4, False, 2, (132,) * 3, (7,) * 3)
    assert agreed([same.row()], DEPTHS, 5) == 2
    assert agreed([replace(same, live=3).row()], DEPTHS, 5) == 0  # no such depth: the shallowest


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_a_clock_wrong_by_a_factor_cancels(factor: float) -> None:
    draw = random.Random(1)
    for _ in range(200):
        rounds = tuple(sorted((draw.uniform(0.2, 1.0) for _ in DEPTHS), reverse=True))
        ms = tuple(sorted(draw.uniform(5.0, 50.0) for _ in DEPTHS))
        wrong = tuple(value * factor for value in ms)
        others = [rank(draw.randint(0, 9), HARD, EARLY) for _ in range(3)]
        assert agreed([rank(10, rounds, ms), *others], DEPTHS, 2) == agreed(
            [rank(10, rounds, wrong), *others], DEPTHS, 2
        )


def test_a_row_is_read_as_it_was_written() -> None:
    for probe in (None, 0, 5):
        ballot = believed(DEPTHS, 2, 3, {0: 1.5, 2: 1.0}, {0: 1e-2, 5: 2e-2}, probe)
        assert read(ballot.row(), DEPTHS) == ballot
        assert ballot == Ballot(3, False, 2, (4608, 3072, 3072), (10_000_000, 0, 20_000_000), probe)
    for most in (None, 0, 5):
        ballot = replace(silent(DEPTHS, 2, 3, failed=True), most=most)
        assert read(ballot.row(), DEPTHS) == ballot


def test_the_most_steps_are_those_of_the_rank_with_least_room() -> None:
    rows = [silent(DEPTHS).row(), *(replace(silent(DEPTHS, 2, 3), most=most).row() for most in (None, 4, 2, 7))]
    assert agree(rows, DEPTHS, 2).most == 2
    assert agree(rows[:2], DEPTHS, 2).most is None


def test_numbers_saturate_and_a_belief_that_is_no_number_is_refused() -> None:
    most = believed((0, 1), 0, 10**12, {0: 1e9, 1: 0.0}, {0: 1e9, 1: 1e-12})
    assert most.row() == [2**31 - 1, 0, 0, 0, 0, MOST, 1, MOST, 1]
    assert agreed([most.row()] * 64, (0, 1), 0) == 1  # products beyond 64 bits stay exact
    for wrong in (float("nan"), float("inf")):
        with pytest.raises((ValueError, OverflowError)):
            believed((0,), 0, 1, {}, {0: wrong})


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"8 columns; expected 11"):
        agreed([[1, 0, 1, 1, 1, 1, 1, 1]], DEPTHS, 2)


def test_no_depth_of_random_rows_takes_less_time() -> None:
    draw = random.Random(7)
    for _ in range(500):
        ballots = [
            Ballot(
                draw.randint(1, 9),
                False,
                -1,
                [draw.randint(1, 9 * SECOND) for _ in DEPTHS],
                [draw.randint(1, SECOND) for _ in DEPTHS],
            )
            for _ in range(draw.randint(1, 5))
        ]
        largest = max(range(len(ballots)), key=lambda at: (ballots[at].requests, -at))
        found = DEPTHS.index(agreed([ballot.row() for ballot in ballots], DEPTHS, 2))
        times = [
            sum(ballot.rounds[at] for ballot in ballots) * ballots[largest].nanoseconds[at] for at in range(len(DEPTHS))
        ]
        assert times[found] == min(times)
