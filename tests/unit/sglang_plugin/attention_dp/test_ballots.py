"""Ranks in gloo processes, with SGLang's own gather: one depth in every round, and SGLang's columns unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from tests import checks
from tests.gathering_plan import FAILS, FORCED, IDLE, ROUNDS, WARM

RANKS = 3


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    file = tmp_path_factory.mktemp("gloo") / "store"
    found: list[dict[str, Any]] = checks.findings("tests.gathering_ranks", str(RANKS), str(file))
    return found


def test_all_ranks_run_the_same_steps_in_every_round(ranks: list[dict[str, Any]]) -> None:
    rounds = list(zip(*(rank["steps"] for rank in ranks), strict=True))
    assert len(rounds) == ROUNDS
    assert [at for at, steps in enumerate(rounds) if len(set(steps)) != 1] == []
    for first, last in (WARM, IDLE, (IDLE[1], FORCED[0])):
        assert {steps[0] for steps in rounds[first:last]} - {-1}, "no round ran there"
    assert len({steps[0] for steps in rounds[WARM[0] : WARM[1]]} - {-1}) > 2


def test_every_rank_files_its_times_under_the_largest_batch(ranks: list[dict[str, Any]]) -> None:
    assert len({tuple(rank["largest"]) for rank in ranks}) == 1
    largest = set(ranks[0]["largest"])
    assert len(largest) > 3
    for rank in ranks:
        assert rank["timed"] and set(rank["timed"]) <= largest


def test_held_steps_run_once_all_ranks_have_heard(ranks: list[dict[str, Any]]) -> None:
    held = ranks[0]["steps"][FORCED[0] + 3 * RANKS : FORCED[1]]
    assert set(held) - {-1} == {7}


def test_a_failed_policy_is_told_on_its_own_rank_alone(ranks: list[dict[str, Any]]) -> None:
    assert [rank["degraded"] is not None for rank in ranks] == [False, True, False]
    assert set(ranks[0]["steps"][FAILS:]) - {-1}


def test_sglang_reads_what_it_read_before(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        before, after = rank["fields"]
        assert before == after
    assert ranks[0]["fields"][0]["global_num_tokens"] == [5 + rank for rank in range(RANKS)]
