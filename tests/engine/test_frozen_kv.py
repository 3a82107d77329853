"""A draft that reads the target's keys and values: served over HTTP at every depth."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.servers import TIERS
from tests.engine.workload import (
    Case,
    Output,
    adaptive,
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
        *(Case(prompt) for pair in zip(easy[:4], hard[:4], strict=True) for prompt in pair),
        Case(easy[4] * 4),  # several prefill chunks
        Case(easy[5], max_new_tokens=1),
        Case(easy[6], sampling={"stop": [" ", "e"], "min_new_tokens": 9}),
    ]


@pytest.mark.parametrize("at_once", [1, 4])
def test_outputs_while_the_depth_switches(
    frozen_kv: CpuServer, expected: Expected, cases: list[Case], at_once: int
) -> None:
    require_while_switching(frozen_kv, cases, expected(cases), at_once)


def test_outputs_under_the_policy(frozen_kv: CpuServer, expected: Expected, cases: list[Case]) -> None:
    assert run(frozen_kv, cases, at_once=3) == expected(cases)
    assert adaptive(frozen_kv)["policy"] == "throughput"


@pytest.mark.parametrize("steps", TIERS)
def test_every_round_runs_at_the_forced_depth(frozen_kv: CpuServer, easy: list[str], steps: int) -> None:
    frozen_kv.force_steps(steps)
    before = adaptive(frozen_kv)["rounds_by_tier"]
    meta = Case(easy[0], max_new_tokens=24).whole(frozen_kv)["meta_info"]
    after = adaptive(frozen_kv)["rounds_by_tier"]
    frozen_kv.force_steps(None)
    grown = {tier: after[tier] - before.get(tier, 0) for tier in after if after[tier] != before.get(tier, 0)}
    assert grown == {str(steps): meta["spec_verify_ct"]}


def test_sampled_requests_are_served_at_every_depth(frozen_kv: CpuServer, easy: list[str]) -> None:
    with rotating_depth(frozen_kv):
        sampled = Case(easy[0], sampling={"temperature": 0.8, "top_p": 0.9, "ignore_eos": True})
        assert [len(output.ids) for output in run(frozen_kv, [sampled] * 4, at_once=2)] == [48] * 4
    require_whole_pool(frozen_kv)
