"""Zero steps leave no trace in the drafts: those after a resume are those of a server that ran the draft every round.

The scheduler is SGLang's, with its worker and the shipped pair, stepped round by round: see `stepping`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.cpu_engine.launcher import environment
from sglang_adaptive.cpu_engine.server import CpuServer
from tests.engine.workload import Case, adaptive, force, run

ROOT = Path(__file__).parents[2]
EVERY_ROUND, HELD = "1", ("8", "3")
SLOTS = 8192

Runs = dict[str, dict[str, Any]]


@pytest.fixture(scope="module", params=["normal", "overlap"])
def scripts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Runs]:
    """What every script did, by how many rounds share an extend: in SGLang's normal loop, and in its overlapping one."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.stepping", str(tmp_path_factory.mktemp("stepping")), request.param],
        cwd=ROOT,
        env={**os.environ, **environment()},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Runs] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_drafts_and_outputs_are_those_of_an_extend_in_every_round(scripts: dict[str, Runs]) -> None:
    for name, runs in scripts.items():
        wanted = runs[EVERY_ROUND]
        assert wanted["held_rounds"] == 0 and wanted["drafts"] and all(wanted["outputs"].values())
        for every in HELD:
            for what in ("drafts", "rounds", "outputs", "reason"):
                assert runs[every][what] == wanted[what], f"{name}, every {every}: {what}"


def test_extends_are_as_few_as_promised(scripts: dict[str, Runs]) -> None:
    """Two stretches at zero steps each, each with one more extend for what is left when drafting resumes."""
    for rounds in (1, 2, 5, 8, 9, 21):
        for every in HELD:
            run = scripts[f"resume after {rounds}"][every]
            assert run["held_rounds"] == 2 * rounds
            assert run["extends"] == 2 * -(-rounds // int(every))


def test_drafts_would_tell_of_missing_rows(scripts: dict[str, Runs]) -> None:
    for name in ("resume after 21", "second turn after 22"):
        cold, wanted = scripts[name]["cold"], scripts[name][EVERY_ROUND]
        assert cold["drafts"] != wanted["drafts"] and sum(cold["rounds"].values()) > sum(wanted["rounds"].values())
        assert cold["outputs"] == wanted["outputs"]


def test_a_request_that_leaves_keeps_from_the_cache_what_it_owes(scripts: dict[str, Runs]) -> None:
    for name, runs in scripts.items():
        for every in HELD:
            assert runs[every]["free_slots"] == SLOTS, name
            lost = runs[EVERY_ROUND]["cached"].get("b", 0) - runs[every]["cached"].get("b", 0)
            assert 0 <= lost <= int(every), name
    runs = scripts["second turn after 22"]
    assert runs["8"]["cached"]["b"] < runs["cold"]["cached"]["b"]


def test_the_server_says_and_changes_how_often(ema: CpuServer, easy: list[str]) -> None:
    def every(rounds: Any) -> Any:
        return ema.post("/set_internal_state", {"server_args": {"adaptive_zero_step_extend_every": rounds}})

    force(ema, 0)
    for rounds in (8, 3, 1):
        assert every(rounds) == [True]
        before = adaptive(ema)["zero_steps"]
        run(ema, [Case(easy[0], max_new_tokens=25)], at_once=1)
        after = adaptive(ema)["zero_steps"]
        held = after["held_rounds"] - before["held_rounds"]
        assert (after["extend_every"], after["reason"]) == (rounds, None)
        assert (held, after["extends"] - before["extends"]) == ((24, 24 // rounds) if rounds > 1 else (0, 0))
    for refused in (0, 9, 2.5):
        assert every(refused) == [False]
    assert every(8) == [True]
    force(ema, None)
