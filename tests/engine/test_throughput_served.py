"""The throughput policy on two tensor-parallel ranks, one of which has a wrong clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive import calibrate, explain
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.policy.profile import loads_profile
from sglang_adaptive.policy.throughput.lookups import KINDS
from tests.engine.servers import rank_rounds, require_alike, throughput
from tests.engine.workload import Case, adaptive, rotating_depth, run


@pytest.fixture
def cases(easy: list[str], hard: list[str]) -> list[Case]:
    """Return text of both kinds, alternating, so that the depth has to change."""
    return [Case(prompt, max_new_tokens=24) for prompt in (*easy[:2], *hard[:2])]


def test_every_rank_runs_the_same_depths_and_the_text_stays(two_ranks: CpuServer, cases: list[Case]) -> None:
    two_ranks.force_steps(0)
    without_drafts = run(two_ranks, cases, at_once=3)
    two_ranks.force_steps(None)
    assert run(two_ranks, cases, at_once=1) == without_drafts
    assert run(two_ranks, cases, at_once=3) == without_drafts
    # Whether a probe pays depends on the times.
    while len({line.split()[1] for line in rank_rounds(two_ranks, 0)}) <= 2:
        assert run(two_ranks, cases, at_once=3) == without_drafts
    assert len(require_alike(two_ranks)) > 60


def test_every_rank_looks_the_same_up(lookups: CpuServer, cases: list[Case]) -> None:
    """Depths and lookups alternate, also with a penalty, which counts every token of a round."""
    penalised = [Case(case.prompt, 40, {"ignore_eos": True, "frequency_penalty": 1.5}) for case in cases]
    mixed = [*cases, *penalised]
    lookups.force_steps(0)
    without_drafts = run(lookups, mixed, at_once=3)
    assert without_drafts[: len(cases)] != without_drafts[len(cases) :]
    with rotating_depth(lookups):
        assert run(lookups, mixed, at_once=3) == without_drafts
    for drafts in KINDS:
        lookups.force_steps(drafts)
        assert run(lookups, cases, at_once=3) == without_drafts[: len(cases)]
    lookups.force_steps(None)
    assert run(lookups, cases, at_once=1) == without_drafts[: len(cases)]
    assert {line.split()[1] for line in require_alike(lookups)} >= {"0", *map(str, KINDS)}


def check_warm_up(found: dict[str, Any]) -> None:
    """Every depth ran at every size before the server was ready, and the policy learned nothing from it."""
    startup = found["startup"]
    assert startup["warm_up_seconds"] > 0
    assert startup["warm_up_rounds"] >= 3 * len((1, 2, 3, 4)) + 3 * len((1, 3))  # greedily, and sampled
    # Those of the last pass, the sampled one. On a busy machine its requests may also run two at a time.
    assert {1, 3} <= set(startup["warmed_batch_sizes"])
    assert [tier["steps"] for tier in startup["tiers"]] == sorted([0, 2, 5, *KINDS])
    # After it comes only SGLang's own request for 8 tokens.
    assert sum(found["rounds_by_tier"].values()) <= 8


def test_calibrated_profile_is_what_the_next_start_begins_from(
    elsewhere: Path, easy: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path, profiles = elsewhere, elsewhere / "profiles"
    server = throughput(tmp_path, profiles)
    with server:
        check_warm_up(adaptive(server))
        measure = ["--url", server.url, "--batch-sizes", "1,2", "--rounds", "4"]
        assert calibrate.main([*measure, "--output", str(tmp_path / "profile.json")]) == 0
        assert calibrate.main(measure) == 0
        assert adaptive(server)["forced_steps"] is None
        Case(easy[0]).whole(server)
        assert explain.main(["--url", server.url]) == 0
    told = capsys.readouterr().out
    assert "ms per round" in told and "Why: " in told
    written = loads_profile((tmp_path / "profile.json").read_text(), "profile.json")
    assert [(cell.batch_size, cell.steps) for cell in written.cells] == [(n, s) for n in (1, 2) for s in (0, 2, 5)]
    assert all(cell.seconds > 0 and (cell.rounds or 0) >= 4 for cell in written.cells)

    with server:  # the same server, started again
        begun = adaptive(server)
    assert begun["profile_key"] == written.key.as_dict()
    sources = {rate["source"] for rate in begun["rates"]}
    assert "profile" in sources and sources <= {"profile", "measured"}  # the server's own warm-up is timed, too
