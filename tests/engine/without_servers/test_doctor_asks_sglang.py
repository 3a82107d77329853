"""The doctor's examples and questions about launch lines, answered by SGLang itself; no server starts."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang_adaptive import doctor
from sglang_adaptive.cli import main
from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.serve_cpu import default_arguments
from tests import forked_servers
from tests.engine.examples import PROGRAM, examples


@pytest.fixture
def asked(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the doctor's questions to forks of one process, which imports SGLang once."""
    forking = SimpleNamespace(run=forked_servers.run, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(doctor, "subprocess", forking)


@pytest.mark.parametrize("words", examples("doctor", server=False), ids=" ".join)
def test_example_of_the_doctor(words: list[str], asked: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    told = capsys.readouterr().out
    assert f"SGLang: {version('sglang')} fits: it has everything" in told and "plugin: SGLang finds it" in told
    verdict = "Verdict: the arguments of this launch line are fine" if "--" in words else "Verdict: ready: add "
    assert told.splitlines()[-1].startswith(verdict)


def cpu_line(*more: str) -> list[str]:
    """Return a launch line of the CPU engine that requests adaptive speculation, and *more*."""
    speculation = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(models.draft_path())]
    config = ["--speculative-adaptive-config", "conservative"]
    model = ["--model-path", str(models.target_path())]
    return ["--", "sglang-adaptive", "serve-cpu", "--threads", "1", *model, *speculation, *config, *more]


def test_launch_line_that_would_adapt(elsewhere: Path) -> None:
    """Like for a user, SGLang runs in a process of its own."""
    words = [*PROGRAM, "doctor", *cpu_line("--speculative-num-steps", "3")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    told = done.stdout.splitlines()
    assert any(line.endswith("launch line: adaptive speculation would run, starting at 3 draft steps") for line in told)
    assert any(line.endswith("attention backend: torch_ref on cpu") for line in told)
    assert told[-1] == "Verdict: this launch line would serve with adaptive speculation."


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--kv-canary", "log"],
         "it would serve without adapting: --kv-canary only has plans for the drafts of the launch steps"),
        (["--speculative-num-steps", "4"],
         "the launch would end with: sglang-adaptive: error: command line: --speculative-num-steps: got 4; "
         "expected a candidate step: 1, 3, 7"),
        (["--no-such-flag"], "the launch would end with: sglang serve: error: unrecognized arguments: --no-such-flag"),
    ],
)  # fmt: skip
def test_launch_line_that_would_not(
    more: list[str], told: str, asked: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *cpu_line(*more)]) == 1
    said = capsys.readouterr().out
    assert told in said and "Verdict: " in said.splitlines()[-1]
    assert "launch line" in said.splitlines()[-1]


def test_sglang_ends_as_the_doctor_says(asked: None, capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    """With the target as its draft EAGLE3 ends once both are loaded."""
    line = cpu_line("--speculative-draft-model-path", str(models.target_path()))
    assert main(["doctor", *line]) == 1
    said = capsys.readouterr().out
    ending = "'LlamaForCausalLM' object has no attribute 'hot_token_id'"
    assert (
        f"the launch would end with: {ending}: EAGLE3 drafts with a model that was trained for this one, add --" in said
    )
    arguments = line[line.index("--model-path") :]
    outcome = forked_servers.launch(["sglang_adaptive.lab.cpu_engine.start", *arguments, *default_arguments(arguments)])
    assert outcome.code != 0 and ending in outcome.output


def test_a_line_that_starts_and_drafts_badly_gets_a_hint(asked: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *cpu_line("--speculative-algorithm", "EAGLE")]) == 0
    told = capsys.readouterr().out
    assert "note     draft: an EAGLE-3 draft: with --speculative-algorithm EAGLE3 more of its drafts are right" in told
