"""A model of its own drafts: served over HTTP at every depth, and stepped round by round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.cpu_engine.launcher import environment
from sglang_adaptive.cpu_engine.server import CpuServer
from tests.engine.servers import TIERS
from tests.engine.workload import Case, Output, adaptive, require_whole_pool, rotating_depth, run

ROOT = Path(__file__).parents[2]
SWITCHES = 60
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
    wanted, before = expected(cases), adaptive(standalone)
    while (now := adaptive(standalone))["switches"] - before["switches"] < SWITCHES:
        with rotating_depth(standalone):
            assert run(standalone, cases, at_once) == wanted
        require_whole_pool(standalone)
    earlier = before["rounds_by_tier"]
    assert {int(tier) for tier, n in now["rounds_by_tier"].items() if n > earlier.get(tier, 0)} == set(TIERS)
    assert not now["degraded"] and any(position["accepted"] for position in now["accepted_by_position"])


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


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What every script of zero steps did with an extend in every round, and with held rows."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.standalone_steps", str(tmp_path_factory.mktemp("stepping"))],
        cwd=ROOT,
        env={**os.environ, **environment()},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_drafts_are_those_of_an_extend_in_every_round(pairs: list[dict[str, Any]]) -> None:
    for pair in pairs:
        wanted, held = pair["wanted"], pair["held"]
        assert wanted["held_rounds"] == 0 < held["held_rounds"] and wanted["drafts"], pair["name"]
        assert held["outputs"] == wanted["outputs"], pair["name"]
        if pair["fault"] is None:
            for what in ("drafts", "rounds", "reason", "free_slots"):
                assert held[what] == wanted[what], f"{pair['name']}: {what}"


def test_drafts_would_tell_of_missing_rows(pairs: list[dict[str, Any]]) -> None:
    faults = [pair for pair in pairs if pair["fault"] is not None]
    assert faults and all(pair["held"]["drafts"] != pair["wanted"]["drafts"] for pair in faults)
