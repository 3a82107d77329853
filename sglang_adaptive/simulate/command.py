"""``sglang-adaptive simulate``: parse, run the suites, write the reports."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from sglang_adaptive.simulate.contenders import Contender, chosen
from sglang_adaptive.simulate.errors import SimulationError
from sglang_adaptive.simulate.profile_file import SHIPPED, load_cost
from sglang_adaptive.simulate.provenance import provenance
from sglang_adaptive.simulate.report_html import html_report
from sglang_adaptive.simulate.report_json import json_report
from sglang_adaptive.simulate.report_text import text_report
from sglang_adaptive.simulate.results import SuiteResult, run_suite
from sglang_adaptive.simulate.suites import DEFAULT_ROUNDS, DEFAULT_TRACES, SUITES, Setting, Suite
from sglang_adaptive.simulate.targets import outcomes

BAD_INPUT = 2
TARGET_MISSED = 1
FEWEST_ROUNDS = 100


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    found = argparse.ArgumentParser(
        prog="sglang-adaptive simulate",
        description="Play depth policies on simulated rounds and score them against an oracle.",
    )
    add = found.add_argument
    add("--profile", metavar="F", help=f"cost profile, JSON (default: the shipped {SHIPPED})")
    add("--suite", action="append", default=[], metavar="NAME", help=f"repeatable; of {', '.join(SUITES)}")
    add("--policy", action="append", default=[], metavar="NAME", help="repeatable; oracle, throughput, ema, ema-all, "
        "static-N (default: all of them)")  # fmt: skip
    add("--ablate", action="store_true", help="also play the throughput policy with one part off at a time")
    add(
        "--traces",
        type=int,
        default=DEFAULT_TRACES,
        metavar="N",
        help="traces a suite (default: %(default)s)",
    )
    add(
        "--rounds",
        type=int,
        default=DEFAULT_ROUNDS,
        metavar="N",
        help="rounds a trace (default: %(default)s)",
    )
    add("--seed", type=int, default=0, metavar="N", help="default: %(default)s")
    add("--json", type=Path, metavar="F", help="write the report as JSON")
    add("--html", type=Path, metavar="F", help="write the report as one HTML page")
    add("--check", action="store_true", help="exit 1 when a target is missed")
    add(
        "--no-progress",
        action="store_true",
        help="no progress bar (none is drawn when stderr is not a terminal)",
    )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 0, 1 (``--check`` and a target missed) or 2 (bad input)."""
    words = list(sys.argv[1:] if argv is None else argv)
    options = parser().parse_args(words)
    try:
        return _run(options, words)
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


def _play(
    suites: list[Suite], setting: Setting, contenders: list[Contender], progress: bool
) -> dict[str, SuiteResult]:
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
