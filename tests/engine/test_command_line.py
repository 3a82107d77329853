"""The commands that talk to a server or to SGLang, on real ones; every example of their help is run."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.cli import COMMANDS, main
from sglang_adaptive.command_line import DEFAULT_URL
from sglang_adaptive.cpu_engine import models
from sglang_adaptive.cpu_engine.server import CpuServer
from sglang_adaptive.doctor import installation
from sglang_adaptive.sglang_plugin.launch.checkup import CPU_ENGINE
from tests.engine.servers import TIERS
from tests.engine.workload import DEADLINE, Case, adaptive
from tests.launch_lab import LaunchLab

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "sglang_adaptive.cli"]
QUICK = {"calibrate": ["--rounds", "2", "--tokens", "64", "--batch-sizes", "1"]}
"""What is added to an example, in front of its own options, so that it takes seconds."""


def examples(*commands: str, server: bool) -> list[list[str]]:
    """Return the words of the examples of *commands* that do, or do not, name a server.

    That of DSPARK is run by test_dspark_table.py.
    """
    every = [
        [name, *QUICK.get(name, []), *shlex.split(arguments)]
        for name in commands
        for arguments, _ in import_module(COMMANDS[name][0]).parser().examples
    ]
    return [words for words in every if (DEFAULT_URL in words) is server and "--dspark" not in words]


def for_good(words: list[str]) -> bool:
    return words[0] == "watch" and "--once" not in words


WITH_SERVER = examples("watch", "explain", "calibrate", "doctor", server=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like a checkout's root, into which examples may write, profiles too."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SGLANG_ADAPTIVE_PROFILE_DIR", str(tmp_path / "profiles"))
    return tmp_path


@pytest.mark.parametrize("words", [words for words in WITH_SERVER if not for_good(words)], ids=" ".join)
def test_example(words: list[str], ema: CpuServer, checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([ema.url if word == DEFAULT_URL else word for word in words]) == 0
    told = capsys.readouterr()
    if "--json" in words:
        found = json.loads(told.out)
        assert (found["policy"], found.get("tiers", found.get("depths"))) == ("ema", list(TIERS))
    if words[0] == "calibrate":
        assert adaptive(ema)["forced_steps"] is None and "ms a round" in told.out
        kept = Path("mine.json") if "--output" in words else next(Path("profiles").glob("*.json"))
        assert {cell["steps"] for cell in json.loads(kept.read_text())["cells"]} == set(TIERS)
    if words[0] == "doctor":
        assert told.out.splitlines()[-1] == "Verdict: the server adapts."


@pytest.mark.parametrize("words", [words for words in WITH_SERVER if for_good(words)], ids=" ".join)
def test_live_view_on_a_terminal_until_ctrl_c(words: list[str], ema: CpuServer, easy: list[str]) -> None:
    terminal, inside = pty.openpty()
    words = [ema.url if word == DEFAULT_URL else word for word in words]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "60"}
    environment.pop("NO_COLOR", None)
    watching = subprocess.Popen(
        [*PROGRAM, *words], stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True
    )
    os.close(inside)
    try:
        shown = until(terminal, lambda text: "Latest of" in text or "has not switched" in text)
        with kept_busy(ema, easy[0]):  # one request may come and go between two looks
            shown += until(terminal, lambda text: "serving" in text and "accept length" in text)
    finally:
        watching.send_signal(signal.SIGINT)
    shown += until(terminal, lambda text: False)
    assert watching.wait(DEADLINE) == 130
    assert "Traceback" not in shown and "\x1b[?25h" in shown  # the cursor is back
    assert "By depth" in shown and "Slots of the EMA policy" in shown and "\x1b[1;32mserving" in shown


@contextmanager
def kept_busy(server: CpuServer, prompt: str) -> Iterator[None]:
    """Send one request after another meanwhile."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            Case(prompt).whole(server)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()


def until(terminal: int, enough: Callable[[str], bool]) -> str:
    """Read a pseudo-terminal until what came is *enough*, or its other side is closed."""
    text, end = "", time.monotonic() + DEADLINE
    while not enough(text):
        assert time.monotonic() < end, text[-2000:]
        if select.select([terminal], [], [], 1.0)[0]:
            try:
                text += os.read(terminal, 65536).decode(errors="replace")
            except OSError:  # closed
                break
    return text


def test_off_a_terminal_watch_writes_plain_lines(ema: CpuServer, easy: list[str]) -> None:
    command = [*PROGRAM, "watch", "--url", ema.url, "--interval", "0.2"]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert watching.stdout is not None
    assert ", depth " in watching.stdout.readline()
    Case(easy[0]).whole(ema)
    lines = iter(watching.stdout.readline, "")
    line = next(line for line in lines if " tokens/s, accept length " in line)
    assert "\x1b" not in line and " serving, depth " in line
    watching.send_signal(signal.SIGINT)
    assert (watching.wait(DEADLINE), watching.communicate()[1]) == (130, "")


def test_a_server_that_cannot_adapt_is_called_so(tree: CpuServer, capsys: pytest.CaptureFixture[str]) -> None:
    reason = "speculative_eagle_topk=4 (only topk=1 is supported)"
    assert main(["watch", "--url", tree.url, "--once", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["words"]) == ("not adaptive", f"asked to adapt, but it cannot: {reason}")
    assert main(["doctor", "--url", tree.url]) == 1
    told = capsys.readouterr().out
    assert reason in told and told.endswith("Verdict: 1 problem to mend: adaptive speculation.\n")


def test_throughput_policy_is_watched_with_what_each_depth_promises(
    two_ranks: CpuServer, easy: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Case(easy[0]).whole(two_ranks)
    assert main(["watch", "--url", two_ranks.url, "--once", "--interval", "0.1"]) == 0
    told = capsys.readouterr().out
    assert "policy throughput" in told and "why: " in told and "Acceptance by position" in told
    assert main(["watch", "--url", two_ranks.url, "--once", "--interval", "0.1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(row["expected_tokens_per_second"] > 0 for row in found["by_depth"])
    assert sum(row["live"] for row in found["by_depth"]) == 1


# -- doctor: what it asks SGLang, forked from a process that has imported it -------------------------------------------


@pytest.fixture
def asked(lab: LaunchLab, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The doctor's questions go to forks of one process, which imports SGLang once."""

    def run(module: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        outcome = lab.launch(module, f"import os; os.environ[{CPU_ENGINE!r}] = '1'")
        return subprocess.CompletedProcess(module, outcome.code, "", outcome.output)

    monkeypatch.setattr(installation, "_run", run)
    yield


@pytest.mark.parametrize("words", examples("doctor", server=False), ids=" ".join)
def test_example_of_the_doctor(words: list[str], asked: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "SGLang: 0.5.23, and it has everything" in told and "plugin: SGLang finds it" in told
    verdict = "Verdict: nothing wrong with the arguments" if "--" in words else "Verdict: ready: add "
    assert told.splitlines()[-1].startswith(verdict)


def cpu_line(*more: str) -> list[str]:
    """A launch line of the CPU engine that asks for adaptive speculation, and *more*."""
    speculation = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(models.draft_path())]
    config = ["--speculative-adaptive-config", "configs/conservative.json"]
    model = ["--model-path", str(models.target_path())]
    return ["--", "sglang-adaptive", "serve-cpu", "--threads", "1", *model, *speculation, *config, *more]


def test_launch_line_that_would_adapt(asked: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *cpu_line("--speculative-num-steps", "3")]) == 0
    told = capsys.readouterr().out.splitlines()
    assert any(line.endswith("launch line: adaptive speculation would run, starting at 3 draft steps") for line in told)
    assert any(line.endswith("attention backend: torch_ref on cpu") for line in told)
    assert told[-1] == "Verdict: this launch line would serve with adaptive speculation."


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--speculative-eagle-topk", "4", "--speculative-num-steps", "3", "--speculative-num-draft-tokens", "8"],
         "it would serve without adapting: speculative_eagle_topk=4 (only topk=1 is supported)"),
        (["--enable-lora"], "it would serve without adapting: LoRA's graph metadata is built for one depth"),
        (["--speculative-num-steps", "4"],
         "the launch would end with: sglang-adaptive: error: command line: --speculative-num-steps: got 4; "
         "expected a candidate step: 1, 3, 7"),
        (["--no-such-flag"], "the launch would end with: sglang serve: error: unrecognized arguments: --no-such-flag"),
        (["--speculative-adaptive-config", "nowhere.json"],
         "sglang-adaptive: error: nowhere.json: cannot be read: No such file or directory; expected a readable"),
    ],
)  # fmt: skip
def test_launch_line_that_would_not(
    more: list[str], told: str, asked: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *cpu_line(*more)]) == 1
    said = capsys.readouterr().out
    assert told in said and "Verdict: " in said.splitlines()[-1]
    assert "launch line" in said.splitlines()[-1]


def test_doctor_in_a_process_of_its_own(checkout: Path) -> None:
    done = subprocess.run([*PROGRAM, "doctor", "--json", *cpu_line()], capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, done.stderr, found["ok"]) == (0, "", True)
    statuses = {check["name"]: check["status"] for check in found["checks"]}
    assert statuses["launch line"] == statuses["SGLang"] == statuses["plugin"] == "ok"
