"""The demo's command line, where it prints what, and the signals that end it."""

from __future__ import annotations

import io
import os
import signal

import pytest

from sglang_adaptive.command_line import Interrupted, StopSignals
from sglang_adaptive.lab.demo import demo
from sglang_adaptive.lab.demo.demo import warnings
from sglang_adaptive.lab.demo.servers import TITLES
from sglang_adaptive.lab.demo.terminal import WIDEST, Progress, console_of
from tests.refusals import refused


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_off_a_terminal_progress_is_a_line_a_step() -> None:
    stream = io.StringIO()
    progress = Progress(stream, clock=iter([100.0, 107.2]).__next__)
    progress.now("passing")
    progress.done("booted")
    progress.clear()
    assert stream.getvalue() == "[   7 s] booted\n"


def test_on_a_terminal_the_passing_line_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    progress = Progress(stream, clock=lambda: 5.0)
    progress.now("passing")
    shown = stream.getvalue()
    progress.now("passing")
    assert stream.getvalue() == shown and shown.endswith("[   0 s] passing")
    progress.now("x" * 100)
    assert stream.getvalue().splitlines()[-1].count("x") < 40, "the passing line never wraps"
    progress.done("booted")
    assert stream.getvalue().endswith("\x1b[2K[   0 s] booted\n") and "\x1b[?25h" in stream.getvalue()


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colour_on_a_terminal_that_wants_it(
    environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TERM": "xterm", "NO_COLOR": "", **environment}.items():
        monkeypatch.setenv(name, value)
    stream = Terminal()
    console_of(stream).print("[1] :x: a", style="green")
    assert "[1] :x: a" in stream.getvalue() and ("\x1b[32m" in stream.getvalue()) is coloured


def test_off_a_terminal_there_is_no_colour_and_lines_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    for columns, used in (("40", 40), ("300", WIDEST)):
        monkeypatch.setenv("COLUMNS", columns)
        stream = io.StringIO()
        console = console_of(stream)
        console.print("a", style="green")
        assert (stream.getvalue(), console.width) == ("a\n", used)


def test_a_busy_or_small_machine_is_warned_of() -> None:
    assert warnings(["ema", "throughput"], load=0.1, gigabytes=16.0, wanted=7.2) == []
    busy, small = warnings(["ema", "throughput"], load=1000.0, gigabytes=4.0, wanted=7.2)
    assert "load 1000.0" in busy
    assert "4.0 GB" in small and "--policy ema" in small


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_becomes_an_interruption(signum: signal.Signals) -> None:
    def before(*_: object) -> None:
        raise AssertionError("the handler of before was called")

    inherited = signal.signal(signum, before)  # under nohup SIGHUP is ignored and stays ignored
    try:
        with pytest.raises(Interrupted) as stop, StopSignals():
            os.kill(os.getpid(), signum)
        assert stop.value.exit_code == 128 + signum
        assert signal.getsignal(signum) is before
    finally:
        signal.signal(signum, inherited)


def test_a_signal_waits_for_what_must_not_be_cut_in_two() -> None:
    done = []
    with pytest.raises(Interrupted), StopSignals() as signals:
        with signals.held():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("inside")
        done.append("after")
    assert done == ["inside"]


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.fixture(autouse=True)
def no_server_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise AssertionError("a bad command line got as far as the servers")

    monkeypatch.setattr(demo, "launches", fail)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--tokens", "15"], "--tokens 15: expected 16 to 512"),
        (["--tokens", "513"], "--tokens 513: expected 16 to 512"),
        (["--turns", "0", "--pair", "smollm2"], "--turns 0: expected 1 to "),
        (["--tokens", "many"], "invalid int value: 'many'"),
        *((["--policy", "emma"], told) for told in ("'emma'", *TITLES)),
        *((["--pair", "large"], "'large'"), (["--jsn", "x"], "--jsn"), (["extra"], "extra")),
    ],
)
def test_bad_arguments(capsys: pytest.CaptureFixture[str], argv: list[str], told: str) -> None:
    said = refused(capsys, ["demo", *argv])
    assert said.startswith("sglang-adaptive demo: error: ") and told in said
