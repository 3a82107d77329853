"""The audit on real servers: it passes a correct server, finds each injected fault, and restores the server."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.audit import audit, command, sampled
from sglang_adaptive.audit.audit import AS_IT_IS, POLICY, SWITCHING, ZERO
from sglang_adaptive.audit.questions import KINDS, LOGPROBS, PENALTIES, shipped
from sglang_adaptive.cli import main
from sglang_adaptive.command_line import DEFAULT_URL
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine import planted, servers
from tests.engine.examples import examples, require_depth_back
from tests.engine.servers import TIERS
from tests.engine.workload import adaptive, require_whole_pool

DRAFTED = 3
WITHIN = 30
"""Maximum outputs before a fault must be found: one pass over one prompt at zero steps, DRAFTED and switching."""


CONFIG = {"throughput": {"candidate_steps": [0, DRAFTED], "lookup": False}, "warm_up": False}


def prompts(folder: Path, *lines: str | dict[str, Any]) -> str:
    """Return a file with these prompts."""
    path = folder / "mine.txt"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return str(path)


@pytest.fixture
def mine(easy: list[str], tmp_path: Path) -> str:
    """A file with a prompt that the draft continues well and that penalties change."""
    return prompts(tmp_path, {"text": easy[1]})


def audited(tmp_path: Path, url: str, *more: str, tokens: int = 20, code: int = 0) -> dict[str, Any]:
    """Return the findings of an audit, one pass over answers of *tokens* tokens, which exits with *code*."""
    path = tmp_path / "audit.json"
    few = ("--passes", "1", "--minutes", "20", "--tokens", str(tokens))
    assert main(["audit", "--url", url, *few, "--json", str(path), *more]) == code
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CpuServer, Path]]:
    """A server with the fault plugin, and the file that selects a fault."""
    server, order = servers.with_faults(tmp_path_factory.mktemp("planted"), CONFIG)
    with server:
        yield server, order


@pytest.mark.parametrize("fault", [planted.PENALTY, planted.TARGET, planted.LOGPROB])
def test_a_planted_fault_is_found(
    fault: str,
    spoilt: tuple[CpuServer, Path],
    mine: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, order = spoilt
    order.write_text(fault)
    tokens = 20
    if fault == planted.TARGET:  # a catch-up needs zero steps followed by others within one output, at any speed
        monkeypatch.setattr(audit, "SWITCH_SECONDS", 0.0)
        tokens = 32
    found = audited(tmp_path, server.url, "--prompts", mine, tokens=tokens, code=1)
    kinds = {one["kind"] for one in found["wrong"]}
    assert found["wrong"][0]["text"] <= found["texts"] <= WITHIN
    if fault == planted.PENALTY:
        assert kinds <= set(PENALTIES)
    if fault == planted.LOGPROB:
        assert kinds == {LOGPROBS}
    assert not [one for one in found["wrong"] if one["way"] == ZERO]
    told = capsys.readouterr().out
    assert f"Wrong: {found['wrong'][0]['way']}" in told and " texts are wrong, the first after " in told


def test_rounding_is_seen_where_the_reference_reads(tmp_path: Path) -> None:
    """In bfloat16 a verify rounds differently from a plain decode; only plain decodes agree bit for bit."""
    arguments = servers.speculation(*servers.adapting(tmp_path, "rounding", CONFIG), "--dtype", "bfloat16")
    mine = prompts(tmp_path, {"text": shipped(900)["chat 2"]})
    with servers.server(tmp_path, "rounding", *arguments) as server:
        found = audited(tmp_path, server.url, "--prompts", mine, "--at-once", "1", tokens=16)
    assert found["sound"] and found["noise_nats"] > 0.01


def test_every_depth_is_asked(ema: CpuServer, tmp_path: Path) -> None:
    mine = prompts(tmp_path, "the house", {"input_ids": [65, 66, 67]})
    before = adaptive(ema)["rounds_by_tier"]
    found = audited(tmp_path, ema.url, "--prompts", mine, tokens=6)
    assert (found["sound"], found["passes"], found["prompts"]) == (True, 1, 2)
    ways = {(row["way"], row["at_once"]): row["texts"] for row in found["ways"]}
    names = [*(f"{steps} step{'s' * (steps != 1)}" for steps in TIERS), SWITCHING, POLICY]
    questions = 2 * len(KINDS)
    assert all(ways[name, 8] == questions for name in names)
    assert all(ways[name, 1] > 0 for name in names if name != ZERO)
    after = adaptive(ema)["rounds_by_tier"]
    assert all(after[tier] > before.get(tier, 0) for tier in after)
    assert adaptive(ema)["forced_steps"] is None
    require_whole_pool(ema)


def test_what_stock_speculation_leaves_out_is_found(
    static: CpuServer, plain: CpuServer, mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = audited(tmp_path, static.url, "--reference", plain.url, "--prompts", mine, code=1)
    assert {one["kind"] for one in found["wrong"]} <= {*PENALTIES, "least length"}
    assert {one["kind"] for one in found["wrong"]} & set(PENALTIES)
    assert {row["way"] for row in found["ways"]} == {AS_IT_IS}
    assert "EAGLE3, compared with " in capsys.readouterr().out


def test_what_cannot_be_compared_is_said(static: CpuServer, ema: CpuServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--url", static.url]) == 1
    assert f"{static.url} does not adapt: expected --reference URL" in capsys.readouterr().err
    assert main(["audit", "--url", static.url, "--reference", ema.url]) == 1
    assert f"--reference: {ema.url} speculates (EAGLE3)" in capsys.readouterr().err


def test_without_zero_steps_it_asks_for_a_reference(faulty: CpuServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--url", faulty.url]) == 1
    assert "the server has the depths 3 and 7: expected --reference URL" in capsys.readouterr().err


def test_the_depth_comes_back_when_it_is_ended(ema: CpuServer) -> None:
    require_depth_back(ema, ["audit"], TIERS, signal.SIGTERM)


def test_what_an_operator_held_is_held_again(ema: CpuServer, tmp_path: Path) -> None:
    ema.force_steps(TIERS[-1])
    found = audited(tmp_path, ema.url, "--prompts", prompts(tmp_path, "the house"), tokens=4)
    assert adaptive(ema)["forced_steps"] == TIERS[-1]
    assert POLICY not in {row["way"] for row in found["ways"]}
    ema.force_steps(None)


@pytest.mark.parametrize("words", examples("audit", server=True), ids=" ".join)
def test_example(
    words: list[str], ema: CpuServer, plain: CpuServer, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "SAMPLES", 30)  # saves time, as does the next line
    monkeypatch.setattr(command, "shipped", lambda longest: dict(islice(shipped(longest).items(), 1)))
    urls = {DEFAULT_URL: ema.url, "http://127.0.0.1:30001": plain.url}
    assert main([urls.get(word, word) for word in words]) == 0
    if "--json" in words:
        found = json.loads((elsewhere / "audit.json").read_text())
        drawn = {(one["way"], json.dumps(one["sampling"])) for one in found["sampled"]}
        ways = {row["way"] for row in found["ways"]} - {ZERO}
        assert drawn == {(way, json.dumps(dict(how))) for way in ways for how in sampled.KINDS}
        assert all(one["least_probability"] >= sampled.ALPHA and one["comparisons"] for one in found["sampled"])
