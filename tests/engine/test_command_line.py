"""The commands that talk to a server or to SGLang, on real ones; every example of their help runs."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from sglang_adaptive.cli import main
from sglang_adaptive.command_line import DEFAULT_URL
from sglang_adaptive.lab.cpu_engine.server import CpuServer, ServerError
from tests.engine.examples import PROGRAM, examples, on_terminal, require_depth_back, until
from tests.engine.servers import TIERS, server
from tests.engine.workload import DEADLINE, Case, adaptive, decoding


def for_good(words: list[str]) -> bool:
    return words[0] == "watch" and "--once" not in words


WITH_SERVER = examples("watch", "explain", "calibrate", "doctor", server=True)


@pytest.mark.parametrize("words", [words for words in WITH_SERVER if not for_good(words)], ids=" ".join)
def test_example(words: list[str], ema: CpuServer, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([ema.url if word == DEFAULT_URL else word for word in words]) == 0
    told = capsys.readouterr()
    if "--json" in words:
        state = json.loads(told.out)["adaptive"]
        assert (state["policy"], state["tiers"]) == ("ema", list(TIERS))
    if words[0] == "calibrate":
        assert adaptive(ema)["forced_steps"] is None and "ms per round" in told.out
        kept = Path("mine.json") if "--output" in words else next(Path("profiles").glob("*.json"))
        assert {cell["steps"] for cell in json.loads(kept.read_text())["cells"]} == set(TIERS)
    if words[0] == "doctor":
        assert told.out.splitlines()[-1] == "Verdict: the server adapts."


@pytest.mark.parametrize("words", [words for words in WITH_SERVER if for_good(words)], ids=" ".join)
def test_live_view_on_a_terminal_until_ctrl_c(words: list[str], ema: CpuServer, easy: list[str]) -> None:
    words = [ema.url if word == DEFAULT_URL else word for word in words]
    with on_terminal(words, COLUMNS="100", LINES="60") as (watching, terminal):
        shown = until(terminal, lambda text: "Latest of" in text or "has not switched" in text)
        with decoding(ema, easy[:1]):  # one request may come and go between two polls
            shown += until(terminal, lambda text: "serving" in text and "accept length" in text)
        watching.send_signal(signal.SIGINT)
        shown += until(terminal, lambda text: False)
        assert watching.wait(DEADLINE) == 130
    assert "Traceback" not in shown and "\x1b[?25h" in shown  # the cursor is back
    assert "acceptance by position" in shown and "slot " in shown and "\x1b[1;32mserving" in shown


@pytest.mark.parametrize("by", [signal.SIGHUP, signal.SIGKILL], ids=lambda by: by.name)
def test_calibrate_puts_the_depth_back_whatever_ends_it(ema: CpuServer, by: signal.Signals, tmp_path: Path) -> None:
    words = ["--batch-sizes", "2", "--rounds", "100000", "--output", str(tmp_path / "profile.json")]
    require_depth_back(ema, ["calibrate", *words], TIERS[:1], by)


def test_off_a_terminal_watch_writes_plain_lines(ema: CpuServer, easy: list[str]) -> None:
    command = [*PROGRAM, "watch", "--url", ema.url, "--interval", "0.2"]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert watching.stdout is not None
    assert ", steps " in watching.stdout.readline()
    Case(easy[0]).whole(ema)
    lines = iter(watching.stdout.readline, "")
    line = next(line for line in lines if " tokens/s, accept length " in line)
    assert "\x1b" not in line and " serving: the policy decides, steps " in line
    watching.send_signal(signal.SIGINT)
    assert (watching.wait(DEADLINE), watching.communicate()[1]) == (130, "")


def test_a_server_that_cannot_adapt_is_called_so(tree: CpuServer, capsys: pytest.CaptureFixture[str]) -> None:
    reason = "speculative_eagle_topk=4 (only topk=1 is supported)"
    assert main(["watch", "--url", tree.url, "--once", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["words"] == f"asked to adapt, but it cannot: {reason}"
    assert main(["doctor", "--url", tree.url]) == 1
    told = capsys.readouterr().out
    assert reason in told and told.endswith("Verdict: 1 problem to fix: adaptive speculation.\n")


def test_a_server_whose_port_is_taken_while_it_starts_ends_and_says_so(tmp_path: Path) -> None:
    late = server(tmp_path, "late")
    refusal = pytest.raises(ServerError, match=f"another process has taken port {late.port}")
    with socket.create_server((late.host, late.port)), refusal:
        late.start()
    assert not late.is_running()
