"""``sglang-adaptive demo``: parses, runs, and returns an exit code."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from sglang_adaptive.command_line import PROBLEM, CommandParser, Interrupted, listed
from sglang_adaptive.lab.demo.demo import Demo
from sglang_adaptive.lab.demo.real_text import RealTextDemo
from sglang_adaptive.lab.demo.results import DemoError
from sglang_adaptive.lab.demo.servers import TITLES
from sglang_adaptive.lab.demo.terminal import Progress

TINY = "tiny"
TOKENS = {TINY: 224, "smollm2": 96}
"""Tokens of an answer by default, by pair."""

POLICIES = {TINY: ("ema", "throughput"), "smollm2": ("throughput", "lookups")}
"""Policies that are shown by default, by pair."""

TURNS = 2
MOST_TURNS = 20
FEWEST_TOKENS, MOST_TOKENS = 16, 512


def parser() -> CommandParser:
    found = CommandParser(
        "demo",
        "Runs real SGLang servers on this machine's CPU: without speculation, at fixed depths, and adaptive. Each "
        "generates the same easy and hard text, and the demo shows how the draft depth follows the text and checks "
        "that no policy changes a token. Takes about three minutes on two cores.\n\n"
        "With --pair smollm2 it serves a real model, SmolLM2-135M-Instruct (see models). You can read its answers, "
        "with the draft steps next to them, and the speed-ups are real on this machine. One question asks it to "
        "repeat a text, where drafts looked up in the request help most. Takes about six minutes.",
        [
            ("", "run everything in the terminal"),
            ("--pair smollm2", "use a real language model"),
            ("--policy throughput --keep", "run one policy and leave its server running"),
            ("--tokens 64", "run faster, and see less"),
        ],
        "0 done; 1 a token changed, the depth never moved, or a server failed; 2 bad usage; 130 interrupted",
    )
    add = found.add_argument
    known = listed(tuple(TITLES), "or")
    shown = {pair: " and ".join(names) for pair, names in POLICIES.items()}
    add("--keep", action="store_true", help="leave the adaptive server running and print how to use it")
    add("--pair", choices=TOKENS, default=TINY, metavar="NAME", help=f"{' or '.join(TOKENS)} (default: %(default)s)")
    add("--policy", action="append", choices=TITLES, default=[], metavar="NAME",
        help=f"{known}; repeatable (default: {_by_pair(shown)})")  # fmt: skip
    add("--tokens", type=int, metavar="N",
        help=f"tokens per request (the maximum with smollm2), {FEWEST_TOKENS} to {MOST_TOKENS} "
        f"(default: {_by_pair(TOKENS)}); fewer is faster but shows less")  # fmt: skip
    add("--turns", type=int, default=TURNS, metavar="N",
        help=f"times to ask each question, 1 to {MOST_TURNS} (default: %(default)s); smollm2 only")  # fmt: skip
    return found


def _by_pair(defaults: Mapping[str, object]) -> str:
    return ", ".join(f"{value} for {pair}" for pair, value in defaults.items())


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options in *argv*; ends with BAD_INPUT and one line where they cannot be used."""
    found = parser()
    options = found.parse_args(argv)
    options.policy = options.policy or list(POLICIES[options.pair])
    if options.tokens is None:
        options.tokens = TOKENS[options.pair]
    if not 1 <= options.turns <= MOST_TURNS:
        found.error(f"--turns {options.turns}: expected 1 to {MOST_TURNS}")
    if not FEWEST_TOKENS <= options.tokens <= MOST_TOKENS:
        found.error(f"--tokens {options.tokens}: expected {FEWEST_TOKENS} to {MOST_TOKENS}")
    return options


def main(argv: Sequence[str]) -> int:
    """Run the demo; returns the exit code."""
    options = parse(argv)
    folder = Path(tempfile.mkdtemp(prefix="sglang-adaptive-demo-"))
    progress = Progress(sys.stderr)
    demo = Demo if options.pair == TINY else RealTextDemo
    try:
        with ExitStack() as at_end:
            at_end.callback(progress.clear)
            return demo(options, folder, progress).run()
    except Interrupted as stop:
        print("sglang-adaptive demo: interrupted; every server was stopped", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        return stop.exit_code
    except DemoError as error:
        tail = f"\n{error.detail}" if error.detail else ""
        print(f"sglang-adaptive demo: {error}{tail}\nThe logs are in {folder}", file=sys.stderr)
        return PROBLEM
