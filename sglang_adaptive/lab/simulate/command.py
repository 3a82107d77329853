"""``sglang-adaptive simulate``: parse, run the suites, write the report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from sglang_adaptive.command_line import BAD_INPUT, DONE, CommandParser, count, listed, new_file
from sglang_adaptive.lab.simulate import text, traffic
from sglang_adaptive.lab.simulate.contenders import LOOKUPS, chosen
from sglang_adaptive.lab.simulate.cost import SHIPPED, SimulationError, load_cost
from sglang_adaptive.lab.simulate.real import suite as real
from sglang_adaptive.lab.simulate.real.oracles import ORACLES
from sglang_adaptive.lab.simulate.report import Played, as_json, drawn
from sglang_adaptive.lab.simulate.rounds import NOISE
from sglang_adaptive.lab.simulate.scenes import DEFAULT_ROUNDS, DEFAULT_TRACES, SUITES, Setting
from sglang_adaptive.lab.simulate.score import run_suite

FEWEST_ROUNDS = 100
POLICIES = "oracle, throughput, lookups, ema, ema-all, static-N, or MODULE:CALLABLE for your own"


def parser() -> CommandParser:
    found = CommandParser(
        "simulate",
        "Runs depth policies on simulated rounds, with round times measured on a GPU and random acceptance, and "
        "scores them against an oracle that knows the acceptance. docs/cli.md explains the figures.",
        [
            ("--suite both --traces 4 --rounds 400", "quick check: text and load both change"),
            ("--policy throughput --policy ema --suite load --traces 2 --rounds 400 --json sim.json",
             "two policies under changing load, with the numbers as JSON"),
        ],
        "0 done; 2 bad usage or input",
    )  # fmt: skip
    add = found.add_argument
    add("--profile", metavar="F", help=f"cost profile, JSON (default: {SHIPPED}, or all shipped ones for {real.NAME})")
    add("--suite", action="append", choices=(*SUITES, real.NAME), default=[], metavar="NAME",
        help=f"repeatable; {', '.join(SUITES)} (default: all of these), or {real.NAME} for recorded text")  # fmt: skip
    add("--texts", action="append", default=[], metavar="F",
        help=f"repeatable; recording for --suite {real.NAME} (default: the shipped ones)")  # fmt: skip
    add("--trace", type=Path, metavar="F",
        help='rounds that a server recorded ("trace" in its configuration), to replay under every policy and depth'
        )  # fmt: skip
    add("--policy", action="append", default=[], metavar="NAME", help=f"repeatable; {POLICIES} (default: all)")
    add("--traces", type=count, default=DEFAULT_TRACES, metavar="N", help="traces per suite (default: %(default)s)")
    rounds = f"rounds per trace (default: {DEFAULT_ROUNDS}, or {real.DEFAULT_ROUNDS} in the suite {real.NAME})"
    add("--rounds", type=partial(count, least=FEWEST_ROUNDS), metavar="N", help=rounds)
    add("--seed", type=partial(count, least=0), default=0, metavar="N", help="random seed (default: %(default)s)")
    add("--json", type=new_file, metavar="F", help="write the report as JSON")
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code: DONE or BAD_INPUT."""
    options = parser().parse_args(argv)
    try:
        _check(options)
        run = traffic.run if options.trace else real.run if real.NAME in options.suite else _run_drawn
        report, told = run(options, list(argv))
        print(told)
        if options.json:
            try:
                options.json.write_text(as_json(report), encoding="utf-8")
            except OSError as error:
                raise SimulationError(f"{options.json}: cannot be written ({error.strerror})") from error
    except SimulationError as error:
        print(f"sglang-adaptive simulate: {error}", file=sys.stderr)
        return BAD_INPUT
    return DONE


def _check(options: argparse.Namespace) -> None:
    trace, recorded = options.trace, real.NAME in options.suite
    if LOOKUPS in options.policy and not recorded:
        raise SimulationError(f"--policy {LOOKUPS}: needs recorded text; expected --suite {real.NAME}")
    for flag in ("suite", "texts"):
        if trace and getattr(options, flag):
            raise SimulationError(f"--{flag}: --trace {trace} replays only that trace; expected no --{flag}")
    if "oracle" in options.policy and (trace or recorded):
        what, known = ("--trace", traffic.KNOWING) if trace else (f"--suite {real.NAME}", ORACLES)
        raise SimulationError(f"--policy oracle: needs random acceptance; {what} has {', '.join(known)}")
    if recorded and len(set(options.suite)) > 1:
        raise SimulationError(f"--suite {real.NAME}: expected no other suite with it")
    if options.texts and not recorded:
        raise SimulationError(f"--texts {options.texts[0]}: only --suite {real.NAME} reads recordings")


def _run_drawn(options: argparse.Namespace, words: list[str]) -> Played:
    from tqdm import tqdm  # type: ignore[import-untyped]

    name, cost = load_cost(options.profile)
    setting = Setting(cost, options.rounds or DEFAULT_ROUNDS, options.traces, options.seed)
    silent = [] if options.suite or NOISE.is_dir() else [name for name, suite in SUITES.items() if suite.noise]
    suites = [SUITES[suite] for suite in SUITES if suite in (options.suite or SUITES) and suite not in silent]
    contenders, left_out = chosen(options.policy or None, setting.ladder)
    if silent:
        left_out.append(f"{listed(silent)} are left out: this installation has no recorded noise")
    results = {}
    total = sum(len(suite.indices(setting)) for suite in suites) * len(contenders)
    with tqdm(total=total, unit=" runs", leave=False, disable=None) as bar:
        for suite in suites:
            bar.set_description(suite.name)
            results[suite.name] = run_suite(suite, setting, contenders, bar.update)
    report = drawn(words, name, setting, results, left_out)
    return report, text.drawn(name, report)
