"""Whole blocks of drafts from one pass: served over HTTP at every width."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.servers import BLOCK_DEPTHS
from tests.engine.workload import (
    Case,
    Output,
    adaptive,
    internal_state,
    require_while_switching,
    require_whole_pool,
    rotating_depth,
    run,
)

Expected = Callable[[list[Case]], list[Output]]


@pytest.fixture
def cases(easy: list[str], hard: list[str]) -> list[Case]:
    """Text of both kinds, and ways to end other than by length."""
    return [
        *(Case(prompt) for pair in zip(easy[:2], hard[:2], strict=True) for prompt in pair),
        Case(easy[4] * 4),  # several prefill chunks
        Case(easy[5], max_new_tokens=1),
        Case(easy[6], sampling={"stop": [" ", "e"], "min_new_tokens": 9}),
    ]


@pytest.mark.parametrize("at_once", [1, 4])
def test_outputs_while_the_width_switches(
    blocks: CpuServer, expected: Expected, cases: list[Case], at_once: int
) -> None:
    assert set(adaptive(blocks)["tiers"]) == set(BLOCK_DEPTHS)
    require_while_switching(blocks, cases, expected(cases), at_once)


def test_outputs_under_the_policy(blocks: CpuServer, expected: Expected, cases: list[Case]) -> None:
    assert run(blocks, cases, at_once=3) == expected(cases)
    assert adaptive(blocks)["policy"] == "throughput"


def test_the_configuration_of_the_launch_can_be_sent_again(blocks: CpuServer) -> None:
    assert blocks.configure({"policy": "throughput", "warm_up": False}) == [True]
    assert adaptive(blocks)["config"]["throughput"]["candidate_steps"] == list(BLOCK_DEPTHS)


@pytest.mark.parametrize("steps", BLOCK_DEPTHS)
def test_every_round_runs_at_the_forced_width(blocks: CpuServer, easy: list[str], steps: int) -> None:
    blocks.force_steps(steps)
    before = adaptive(blocks)["rounds_by_tier"]
    meta = Case(easy[0], max_new_tokens=24).whole(blocks)["meta_info"]
    after, live = adaptive(blocks)["rounds_by_tier"], internal_state(blocks)
    blocks.force_steps(None)
    grown = {tier: after[tier] - before.get(tier, 0) for tier in after if after[tier] != before.get(tier, 0)}
    assert grown == {str(steps): meta["spec_verify_ct"]}
    assert live["speculative_num_draft_tokens"] == steps + 1
    if steps == 0:
        assert meta["spec_verify_ct"] == 23  # the first token is the prefill's


def test_constrained_requests_keep_to_their_grammar(blocks: CpuServer, plain: CpuServer, easy: list[str]) -> None:
    case = Case(easy[1], sampling={"regex": "(ab|cd){3,20}x"})
    wanted = Output.of(case.whole(plain))
    with rotating_depth(blocks):
        assert run(blocks, [case] * 4, at_once=2) == [wanted] * 4
    require_whole_pool(blocks)


def test_clients_that_go_away_while_the_width_switches(blocks: CpuServer, easy: list[str]) -> None:
    streams = [Case(prompt, 4900).stream(blocks) for prompt in easy[:4]]
    with rotating_depth(blocks):
        for stream in streams:
            next(stream)
        for stream in streams:
            stream.close()
    require_whole_pool(blocks)


def test_sampled_requests_are_served_at_every_width(blocks: CpuServer, easy: list[str]) -> None:
    with rotating_depth(blocks):
        sampled = Case(easy[0], sampling={"temperature": 0.8, "top_p": 0.9, "ignore_eos": True})
        assert [len(output.ids) for output in run(blocks, [sampled] * 4, at_once=2)] == [48] * 4
    require_whole_pool(blocks)
