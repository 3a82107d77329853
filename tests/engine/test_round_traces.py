"""A server records its rounds, and a replay reproduces them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.lab.simulate.command import main
from sglang_adaptive.lab.simulate.cost import SimulationError
from sglang_adaptive.lab.simulate.rounds import read_rounds
from tests.engine.workload import Case, kept, rounds, run_together, wait_until

DEPTHS = {"1": {"candidate_steps": [0, 1, 3, 7]}}


def written(file: Path) -> int:
    try:
        return read_rounds(file).count
    except SimulationError:  # no file yet, or no round in it
        return 0


def test_a_trace_is_switched_on_written_off_and_replayed(
    ema: CpuServer, easy: list[str], hard: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rounds.trace"
    cases = [Case(prompt, max_new_tokens=48) for prompt in (*easy[:3], *hard[:3])]
    with kept(ema):
        assert ema.configure({**DEPTHS, "trace": {"file": str(file), "max_mb": 1}}) == [True]
        before = rounds(ema)
        ema.force_steps(3)
        verified = [answer["meta_info"]["spec_verify_ct"] for answer in (case.whole(ema) for case in cases[:2])]
        ema.force_steps(None)
        run_together(ema, cases[2:])
        assert ema.configure(DEPTHS) == [True]
        counted = rounds(ema) - before
        wait_until(lambda: written(file) >= counted, "the last round was written")
        Case(easy[0], max_new_tokens=8).whole(ema)

    found = read_rounds(file)
    assert found.count == counted and len(found.requests) == len(cases)
    alone = list(found.requests.values())[:2]
    for stretches, verify_count in zip(alone, verified, strict=True):
        (stretch,) = stretches
        assert {steps for steps, _ in stretch} == {3}
        assert verify_count <= len(stretch) <= verify_count + 1  # a round may start before the end is known
    assert max(found.batches) > 1

    report = tmp_path / "r.json"
    assert main(["--trace", str(file), "--rounds", "200", "--json", str(report)]) == 0
    assert "throughput" in capsys.readouterr().out
    depths = {depth["steps"]: depth for depth in json.loads(report.read_text())["depths"]}
    assert depths[3]["rounds_run"] >= sum(verified)
    assert depths[1]["tokens_a_round_recut"] < depths[3]["tokens_a_round_recut"]
