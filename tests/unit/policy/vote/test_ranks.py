"""Ranks in processes of their own run the same depth in every round, whatever happens to one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.vote_ranks import LAUNCH, Nature, Rank, gathered_round

ROUNDS = 240
Play = Callable[..., list[list[tuple[int, int, bool]]]]


@pytest.fixture
def play() -> Iterator[Play]:
    """Play rounds with ranks of these natures; events are (round, rank, nature or None to end its process)."""
    ranks: list[Rank | None] = []

    def start(
        natures: list[Nature | None], events: list[tuple[int, int, Nature | None]] | None = None
    ) -> list[list[tuple[int, int, bool]]]:
        ranks[:] = [None if nature is None else Rank(nature, seed) for seed, nature in enumerate(natures)]
        rounds = []
        for at in range(ROUNDS):
            for _, which, nature in [event for event in events or [] if event[0] == at]:
                found = ranks[which]
                if found is not None:
                    found.kill()
                ranks[which] = None if nature is None else Rank(nature, 100 + at)
            rounds.append(gathered_round(at, ranks))
        return rounds

    yield start
    for rank in ranks:
        if rank is not None:
            rank.kill()


SMALL, LARGE, HARD = Nature(2, 0.8), Nature(24, 0.9), Nature(12, 0.2)
CASES = {
    "alike": ([Nature(8, 0.7)] * 3, []),
    "idling": ([LARGE, Nature(24, 0.3, idle=(60, 150)), SMALL], []),
    "all idle for a while": ([Nature(4, 0.8, idle=(80, 90)), Nature(9, 0.5, idle=(70, 100))], []),
    "joining": ([LARGE, None, HARD], [(70, 1, SMALL)]),
    "leaving": ([LARGE, SMALL, HARD], [(70, 0, None)]),
    "restarting": ([LARGE, SMALL, HARD], [(70, 0, None), (120, 0, LARGE)]),
    "lagging": ([SMALL, Nature(24, 0.9, lag=40), HARD], []),
    "a clock too fast": ([SMALL, Nature(24, 0.9, clock=0.01), HARD], []),
    "a clock too slow": ([SMALL, Nature(24, 0.9, clock=100.0), HARD], []),
    "a failed policy": ([SMALL, Nature(24, 0.9, fails_at=100), HARD], []),
}


@pytest.mark.parametrize("case", CASES)
def test_all_ranks_run_the_same_depth_in_every_round(case: str, play: Play) -> None:
    rounds = play(*CASES[case])
    assert [at for at, answers in enumerate(rounds) if len({steps for steps, _, _ in answers}) != 1] == []
    wishes = [{wish for _, wish, _ in answers} for answers in rounds]
    assert any(len(wish) > 1 for wish in wishes), "ranks that always wish the same show nothing"


def test_a_failed_policy_is_outvoted_and_a_lone_one_runs_the_launch_steps(play: Play) -> None:
    natures = [Nature(24, 0.9), Nature(8, 0.9, fails_at=100)]
    rounds = play(natures, [(200, 0, None)])
    assert not rounds[99][1][2] and rounds[100][1][2]
    assert {steps for answers in rounds[150:200] for steps, _, _ in answers} != {LAUNCH}
    assert {steps for answers in rounds[200:] for steps, _, _ in answers} == {LAUNCH}


def test_a_clock_that_is_wrong_by_a_factor_does_not_change_what_is_run(play: Play) -> None:
    def settled(clock: float) -> set[int]:
        return {steps for answers in play([Nature(24, 0.9, clock=clock), SMALL])[-60:] for steps, _, _ in answers}

    assert settled(1.0) == settled(100.0)
