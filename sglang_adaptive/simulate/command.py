"""``sglang-adaptive simulate``: parse, run the suites, write the reports."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from sglang_adaptive.command_line import CommandParser
from sglang_adaptive.simulate.contenders import Contender, chosen
from sglang_adaptive.simulate.errors import SimulationError
from sglang_adaptive.simulate.profile_file import SHIPPED, load_cost
from sglang_adaptive.simulate.provenance import provenance
from sglang_adaptive.simulate.report_html import html_report
from sglang_adaptive.simulate.report_json import json_report
from sglang_adaptive.simulate.report_text import text_report
from sglang_adaptive.simulate.results import SuiteResult, run_suite
from sglang_adaptive.simulate.setting import DEFAULT_ROUNDS, DEFAULT_TRACES, Setting
from sglang_adaptive.simulate.suites import SUITES, Suite
from sglang_adaptive.simulate.targets import outcomes

BAD_INPUT = 2
TARGET_MISSED = 1
FEWEST_ROUNDS = 100
POLICIES = "oracle, throughput, ema, ema-all, static-N"
NUMBERS = (
    ("--traces", DEFAULT_TRACES, "traces a suite"),
    ("--rounds", DEFAULT_ROUNDS, "rounds a trace"),
    ("--seed", 0, "seed of every draw"),
)


class _Parser(CommandParser):
    """Reports a bad command line like any other bad input: in one line."""

    def error(self, message: str) -> NoReturn:
        raise SimulationError(message)


def parser() -> CommandParser:
    """Return the parser of the command; it raises ``SimulationError`` on a bad command line."""
    found = _Parser(
        "simulate",
        "Plays depth policies on simulated rounds, with round times measured on a GPU and drawn acceptance, and "
        "scores them against an oracle that knows the acceptance. docs/simulator.md says what the figures mean.",
        [
            ("--suite both --traces 4 --rounds 400", "a quick look: text and load both change"),
            ("--policy throughput --policy ema --suite load --traces 2 --rounds 400 --json sim.json",
             "two policies under changing load, with the numbers as JSON (sglang-adaptive report draws them)"),
        ],
        "0 done; 1 --check was given and a target is missed; 2 bad usage or input",
    )  # fmt: skip
    add = found.add_argument
    add("--profile", metavar="F", help=f"cost profile, JSON (default: the shipped {SHIPPED})")
    add("--suite", action="append", default=[], metavar="NAME", help=f"repeatable; of {', '.join(SUITES)}")
    add("--policy", action="append", default=[], metavar="NAME", help=f"repeatable; {POLICIES} (default: all)")
    add("--ablate", action="store_true", help="also play the throughput policy with one part off at a time")
    for flag, default, meaning in NUMBERS:
        add(flag, type=int, default=default, metavar="N", help=f"{meaning} (default: %(default)s)")
    add("--json", type=Path, metavar="F", help="write the report as JSON")
    add("--html", type=Path, metavar="F", help="write the report as one HTML page")
    add("--check", action="store_true", help="exit 1 when a target is missed")
    add("--no-progress", action="store_true", help="no progress bar; off a terminal there is none anyway")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 0, 1 (``--check`` and a target missed) or 2 (bad input)."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(parser().parse_args(words), words)
    except SimulationError as error:
        print(f"sglang-adaptive simulate: {error}", file=sys.stderr)
        return BAD_INPUT


def _run(options: argparse.Namespace, words: list[str]) -> int:
    _check(options)
    name, cost = load_cost(options.profile)
    setting = Setting(cost, options.rounds, options.traces, options.seed)
    suites = [SUITES[suite] for suite in SUITES if not options.suite or suite in options.suite]
    contenders = chosen(options.policy, setting.ladder, options.ablate)
    results = _play(suites, setting, contenders, not options.no_progress)
    judged = outcomes(results)
    source = provenance(words, name, setting)
    print(text_report(results, judged))
    if options.json:
        _write(options.json, json.dumps(json_report(results, judged, source), indent=1) + "\n")
    if options.html:
        _write(options.html, html_report(results, judged, source))
    return TARGET_MISSED if options.check and not all(outcome.met for outcome in judged) else 0


def _check(options: argparse.Namespace) -> None:
    for name in options.suite:
        if name not in SUITES:
            raise SimulationError(f"--suite {name}: unknown; expected one of {', '.join(SUITES)}")
    for flag, least in (("traces", 1), ("rounds", FEWEST_ROUNDS), ("seed", 0)):
        if getattr(options, flag) < least:
            raise SimulationError(f"--{flag} {getattr(options, flag)}: expected at least {least}")
    for flag in ("json", "html"):
        path = getattr(options, flag)
        if path is not None and not path.parent.is_dir():
            raise SimulationError(f"--{flag} {path}: the folder {path.parent} does not exist")


def _play(suites: list[Suite], setting: Setting, contenders: list[Contender], progress: bool) -> dict[str, SuiteResult]:
    from tqdm import tqdm  # type: ignore[import-untyped]

    total = len(suites) * setting.traces * len(contenders)
    hidden = not progress or not sys.stderr.isatty()
    results: dict[str, SuiteResult] = {}
    with tqdm(total=total, unit=" runs", leave=False, file=sys.stderr, disable=hidden) as bar:
        for suite in suites:
            bar.set_description(suite.name)
            results[suite.name] = run_suite(suite, setting, contenders, bar.update)
    return results


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SimulationError(f"{path}: cannot be written ({error.strerror})") from error
