"""Every example of a command's help that needs neither a server nor SGLang runs unchanged.

tests/engine/test_command_line.py and test_audit.py run the others, and tests/engine/test_demo.py runs the demo. For the
demo, chat and serve-cpu, whose examples would start servers, this file checks the arguments.
"""

from __future__ import annotations

import glob
import json
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from sglang_adaptive import serve_cpu
from sglang_adaptive.cli import COMMANDS, help_text, main
from sglang_adaptive.lab import chat
from sglang_adaptive.lab.demo import command as demo
from sglang_adaptive.lab.models.smollm2 import target_folder

ROOT = Path(__file__).parents[3]
HERE = ("validate", "simulate")
BOOT = ("demo", "serve-cpu", "chat")
WITH_MODEL = ("models",)
WITH_SERVER = ("doctor", "watch", "explain", "calibrate", "audit")


def examples(*commands: str) -> list[list[str]]:
    """Return the words of every example of *commands*, the command first."""
    return [
        [name, *shlex.split(arguments)]
        for name in commands
        for arguments, _ in import_module(COMMANDS[name][0]).parser().examples
    ]


def test_no_command_is_forgotten() -> None:
    assert set(HERE) | set(BOOT) | set(WITH_MODEL) | set(WITH_SERVER) == set(COMMANDS)


@pytest.mark.parametrize("words", examples(*HERE), ids=" ".join)
def test_example(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs in a folder that looks like a checkout's root, into which it may write."""
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    monkeypatch.chdir(tmp_path)
    # A shell would have expanded the patterns.
    assert main([name for word in words for name in (sorted(glob.glob(word)) or [word])]) == 0
    told = capsys.readouterr()
    assert told.out or "wrote" in told.err
    if "--json" in words and words[0] == "validate":
        assert json.loads(told.out)["valid"] is True
    if "--json" in words and words[0] == "simulate":
        assert (tmp_path / words[words.index("--json") + 1]).stat().st_size > 1000


@pytest.mark.parametrize("words", examples(*BOOT), ids=" ".join)
def test_arguments_of_an_example_that_boots(words: list[str]) -> None:
    if words[0] == "demo":
        assert demo.parse(words[1:])
    elif words[0] == "chat":
        assert chat.parser().parse_args(words[1:]).tokens > 0
    else:
        assert "--model-path" in serve_cpu.command(words[1:])


@pytest.mark.skipif(not target_folder().is_dir(), reason="SmolLM2 is not in the cache; `make smollm2` puts it there")
@pytest.mark.parametrize("words", examples(*WITH_MODEL), ids=" ".join)
def test_example_with_the_real_model(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(ROOT / word) if "/" in word else word for word in words]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["target", "draft"]


PROGRAM_EXAMPLES = [line.split()[1:] for line in help_text().splitlines() if line.startswith("  sglang-adaptive")]


@pytest.mark.parametrize("words", PROGRAM_EXAMPLES, ids=" ".join)
def test_example_of_the_whole_program(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main(words) == 0
    except SystemExit as end:
        assert end.code == 0
    assert capsys.readouterr().out
