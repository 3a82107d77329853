"""The real model served on the CPU: chat from a pipe and on a terminal, and a short form of its demo."""

from __future__ import annotations

import io
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest

from sglang_adaptive.cli import main
from sglang_adaptive.lab.chat import drafting
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.lab.demo import real_text, servers
from sglang_adaptive.lab.models import smollm2
from sglang_adaptive.lab.models.smollm2 import ready_pair, speculation
from tests.engine.examples import on_terminal, until
from tests.engine.servers import TIERS
from tests.engine.workload import DEADLINE, wait_until_idle
from tests.forked_servers import ForkedServer

in_cache = smollm2.target_folder().is_dir() and smollm2.draft_folder().is_dir()
pytestmark = pytest.mark.skipif(not in_cache, reason="SmolLM2 is not in the cache; `make smollm2` puts it there")


@pytest.fixture(scope="module")
def smol() -> Iterator[CpuServer]:
    plain, draft = ready_pair(lambda what: None)
    with ForkedServer([*plain, *speculation(draft, "throughput")]) as server:
        yield server


def test_piped_questions_are_one_conversation(
    smol: CpuServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = f"{smollm2.QUESTION}\n\nAnd of Italy?\n/new\nAnd of Italy?\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(asked))
    assert main(["chat", "--url", smol.url, "--tokens", "24"]) == 0
    told = capsys.readouterr()
    first, second, third = told.out.splitlines()[:3]
    assert first == "The capital of France is Paris." and "Rome" in second
    assert third != second  # without the first question it is another one
    assert told.err.count(" tokens/s, ") == 3 and told.err.count(" draft steps ") == 3


def test_a_conversation_that_is_too_long_is_refused_and_the_talk_goes_on(
    smol: CpuServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{'word ' * 9000}\n{smollm2.QUESTION}\n"))
    assert main(["chat", "--url", smol.url, "--tokens", "24"]) == 1
    assert capsys.readouterr().out == "The capital of France is Paris.\n"


LONG = "Write a long story about a dragon, a castle and a lost key. Begin at once."
TOKENS = 2000
"""The story has more tokens."""


def test_ctrl_c_cuts_an_answer_off_and_ctrl_d_ends(smol: CpuServer) -> None:
    words = ["chat", "--url", smol.url, "--tokens", str(TOKENS)]
    before = drafting(smol)
    with on_terminal(words) as (talking, terminal):
        shown = until(terminal, lambda text: "you> " in text)
        os.write(terminal, f"{LONG}\n".encode())
        shown = until(terminal, lambda text: len(text) > len(LONG) + 60)  # the terminal shows the question too
        talking.send_signal(signal.SIGINT)
        shown += until(terminal, lambda text: "you> " in text)
        os.write(terminal, b"\x04")
        shown += until(terminal, lambda text: False)
        assert talking.wait(DEADLINE) == 0 and "Traceback" not in shown
    wait_until_idle(smol)
    after = drafting(smol)
    assert (after - before).total() < TOKENS / (TIERS[-1] + 1), "the request was aborted"
    smol.generate("Hello", 4)
    assert (drafting(smol) - after).total() <= 3, "no more rounds run"


def test_ctrl_c_at_the_prompt_ends_with_130(smol: CpuServer) -> None:
    with on_terminal(["chat", "--url", smol.url]) as (talking, terminal):
        until(terminal, lambda text: "you> " in text)
        while talking.poll() is None:
            talking.send_signal(signal.SIGINT)
            # If one comes after the prompt is shown but before it waits for a key, the next prompt handles it.
            with suppress(subprocess.TimeoutExpired):
                talking.wait(5)
        shown = until(terminal, lambda text: False)
        assert talking.returncode == 130 and "Traceback" not in shown


def test_the_demo_in_short(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs in this process with forked servers; the tiny pair's demo is tested as a user runs it."""
    monkeypatch.setattr(servers, "CpuServer", ForkedServer)
    for kind in ("chat", "copy", "translate"):  # tests without a server cover tables with all of them
        monkeypatch.delitem(real_text.QUESTIONS, kind)
    monkeypatch.setenv("COLUMNS", "80")
    short = ["--policy", "lookups", "--tokens", "16", "--turns", "1"]
    assert main(["demo", "--pair", "smollm2", *short]) == 0
    shown = capsys.readouterr().out
    assert "Lossless: in every run, all 1 requests" in shown and "FAILED" not in shown
    assert max(map(len, shown.splitlines())) <= 80 and "\x1b" not in shown
    for name in ("no speculation", "static 1", "static 3", "static 7", "with lookups"):
        assert f"\n{name} " in shown
