"""Dips of the batch, which are over before another depth could pay."""

from __future__ import annotations

from sglang_adaptive.policy.throughput.choice.standing_batch import BRIEF_ROUNDS, StandingBatch


def dips(*anchors: int) -> list[bool]:
    standing, found = StandingBatch(), []
    for anchor in anchors:
        standing.follow(anchor)
        found.append(standing.dips)
    return found


def test_a_batch_that_is_near_counts_once_it_has_lasted() -> None:
    assert dips(8, 6, 6, 8, 6, 8) == [False, True, True, False, True, False]
    assert dips(8, *[6] * (BRIEF_ROUNDS + 1)) == [False, *[True] * (BRIEF_ROUNDS - 1), False, False]
    assert dips(8, 6, 4, 6, 6, 8) == [False, True, True, True, False, True]  # somewhere below for long enough


def test_another_load_counts_at_once() -> None:
    assert dips(8, 3, 64, 1, 2, 2) == [False, False, False, False, True, True]


def test_the_first_batch_counts() -> None:
    assert dips(32) == [False]
