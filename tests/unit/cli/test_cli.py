"""The program as a whole: help, exit codes, closed pipes, and its imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from sglang_adaptive import __version__
from sglang_adaptive.cli import COMMANDS, main
from sglang_adaptive.command_line import has_colour

ROOT = Path(__file__).parents[3]
PROGRAM = [sys.executable, "-m", "sglang_adaptive.cli"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_teaches(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main([name, "--help"])
    except SystemExit as end:
        code = end.code
    told = capsys.readouterr().out
    assert code == 0
    assert f"usage: sglang-adaptive {name}" in told and "exit codes: " in told
    parser = import_module(COMMANDS[name][0]).parser()
    assert parser.examples and all(f"  sglang-adaptive {name} {words}".rstrip() in told for words, _ in parser.examples)


def test_help_lists_every_command() -> None:
    told = run("--help").stdout
    assert all(f"  {name} " in told and what in told for name, (_, what) in COMMANDS.items())


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        (["--version"], 0, f"sglang-adaptive {__version__}\n", ""),
        (["validat"], 2, "", "sglang-adaptive: error: no command 'validat'; did you mean validate?\n"),
        (["watch", "--intervall", "1"], 2, "", "sglang-adaptive watch: error: unrecognized arguments: --intervall 1\n"),
        (["watch", "--interval", "0"], 2, "",
         "sglang-adaptive watch: error: argument --interval: got '0'; expected seconds from 0.1 to 3600\n"),
        (["calibrate"], 2, "", "sglang-adaptive calibrate: error: the following arguments are required: --url\n"),
    ],
)  # fmt: skip
def test_exit_codes_and_refusals_of_one_line(words: list[str], code: int, out: str, err: str) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout, done.stderr) == (code, out, err)


def test_without_a_command_it_shows_the_help_and_fails() -> None:
    done = run()
    assert done.returncode == 2 and done.stdout.startswith("usage: ")


@pytest.mark.parametrize("words", [["--help"], ["validate", "--help"], ["validate", "aggressive"]])
def test_reader_that_went_away_is_no_fault(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    # Unbuffered, argparse itself would drop the error.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [*PROGRAM, *words], stdout=write, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT, env=buffered
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_help_and_validate_load_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from sglang_adaptive.cli import main\n"
        "assert main(['--help']) == main(['validate', 'conservative']) == 0\n"
        "heavy = {'torch', 'sglang', 'numpy', 'rich', 'tqdm'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {"TERM": "xterm"}, False),
    ],
)
def test_colour_is_for_terminals_and_never_against_no_color(
    terminal: bool, environment: dict[str, str], coloured: bool
) -> None:
    outer, inner = os.openpty() if terminal else os.pipe()
    with os.fdopen(inner, "w") as stream:
        assert has_colour(stream, environment) is coloured
    os.close(outer)
