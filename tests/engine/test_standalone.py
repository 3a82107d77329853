"""A model of its own drafts: served over HTTP at every depth."""

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
    standalone: CpuServer, expected: Expected, cases: list[Case], at_once: int
) -> None:
    require_while_switching(standalone, cases, expected(cases), at_once)


def test_outputs_under_the_policy(standalone: CpuServer, expected: Expected, cases: list[Case]) -> None:
    assert run(standalone, cases, at_once=3) == expected(cases)
    assert adaptive(standalone)["policy"] == "throughput"


@pytest.mark.parametrize("steps", TIERS)
def test_every_round_runs_at_the_forced_depth(standalone: CpuServer, easy: list[str], steps: int) -> None:
    standalone.force_steps(steps)
    before = adaptive(standalone)["rounds_by_tier"]
    meta = Case(easy[0], max_new_tokens=24).whole(standalone)["meta_info"]
    after = adaptive(standalone)["rounds_by_tier"]
    standalone.force_steps(None)
    grown = {tier: after[tier] - before.get(tier, 0) for tier in after if after[tier] != before.get(tier, 0)}
    assert grown == {str(steps): meta["spec_verify_ct"]}


def test_sampled_requests_are_served_at_every_depth(standalone: CpuServer, easy: list[str]) -> None:
    with rotating_depth(standalone):
        sampled = Case(easy[0], sampling={"temperature": 0.8, "top_p": 0.9, "ignore_eos": True})
        assert [len(output.ids) for output in run(standalone, [sampled] * 4, at_once=2)] == [48] * 4
    require_whole_pool(standalone)


def test_zero_steps_hold_the_extend_back(standalone: CpuServer, easy: list[str]) -> None:
    standalone.force_steps(3)
    Case(easy[0], max_new_tokens=8).whole(standalone)
    standalone.force_steps(0)
    before = adaptive(standalone)["zero_steps"]
    Case(easy[0], max_new_tokens=25).whole(standalone)
    after = adaptive(standalone)["zero_steps"]
    standalone.force_steps(None)
    held, extends = (after[what] - before[what] for what in ("held_rounds", "extends"))
    assert after["reason"] is None and held == 24 and 0 < extends <= held / 4
