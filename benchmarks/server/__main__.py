"""``python -m benchmarks.server``: policies compared on real servers.

matrix    start servers, drive them through workloads, write one JSON a run
start     only start servers, and leave them running
drive     drive servers that were left running
stop      stop them
compare   print results side by side: python -m benchmarks.server compare A.json B.json
summary   print the targets, measured and met or missed, from a folder of results
plot      draw one picture a workload, from a folder of results
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.server.results import BadResult


def main(argv: Sequence[str]) -> int:
    """Run one subcommand; returns 0, 1 when something failed, 2 for bad usage or unusable input."""
    arguments = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _end)  # a time limit from outside: servers are to be stopped on the way out
    try:
        code: int = arguments.run(arguments, argv)
        return code
    except (BadResult, ValueError) as problem:
        print(f"benchmarks.server: error: {problem}", file=sys.stderr)
        return 2


def _end(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _matrix(arguments: argparse.Namespace, argv: Sequence[str]) -> int:
    from benchmarks.server.matrix import run

    return run(_asked(arguments), argv)


def _start(arguments: argparse.Namespace, argv: Sequence[str]) -> int:
    from benchmarks.server.matrix import start

    return start(_asked(arguments))


def _drive(arguments: argparse.Namespace, argv: Sequence[str]) -> int:
    from benchmarks.server.matrix import drive
    from benchmarks.server.servers import attach

    asked = _asked(arguments)
    servers = [attach(policy, asked.output) for group in asked.groups for policy in group]
    return 0 if drive(servers, asked, time.monotonic() + asked.budget, argv) else 1


def _stop(arguments: argparse.Namespace, argv: Sequence[str]) -> int:
    from benchmarks.server.policies import POLICIES
    from benchmarks.server.servers import attach

    for record in arguments.output.glob("*.running"):
        attach(POLICIES[record.stem], arguments.output).stop()
        print(f"stopped {record.stem}")
    return 0


def _asked(arguments: argparse.Namespace) -> Any:
    from benchmarks.server import hosts
    from benchmarks.server.matrix import Matrix
    from benchmarks.server.policies import chosen
    from benchmarks.server.workloads import WORKLOADS

    unknown = [name for name in arguments.workloads if name not in WORKLOADS]
    if unknown:
        raise ValueError(f"--workloads: {unknown[0]} is none of {', '.join(WORKLOADS)}")
    plan = _plan(arguments)
    most = max(*plan.batches, *(plan.concurrencies if "load" in arguments.workloads else ()), 1)
    more = {
        "extra": tuple(arguments.server_arguments.split()),
        "speculation": tuple(arguments.speculation.split()),
        "strict_loads": arguments.strict_loads,
    }
    if arguments.host == "gpu":
        memory = {"kv_tokens": arguments.kv_tokens, "prefill_graphs": arguments.prefill_graphs}
        host: hosts.Host = hosts.gpu(arguments.models, most, **memory, **more)
    else:
        host = hosts.cpu(most, **more)
    arguments.output.mkdir(parents=True, exist_ok=True)
    output = arguments.output.resolve()
    profiles = (arguments.profiles or output / "profiles").resolve()
    groups = tuple(tuple(chosen(part.replace("+", ","))) for part in _groups(arguments.policies))
    return Matrix(
        groups, tuple(arguments.workloads), tuple(arguments.depths), plan, host, output, profiles,
        arguments.budget, arguments.start_timeout, not arguments.real_acceptance,
    )  # fmt: skip


def _groups(text: str) -> list[str]:
    from benchmarks.server.policies import POLICIES

    return list(POLICIES) if text == "all" else text.split(",")


def _plan(arguments: argparse.Namespace) -> Any:
    from benchmarks.server.workloads import Plan

    given = {field.name: getattr(arguments, field.name, None) for field in fields(Plan)}
    return Plan(**{name: value for name, value in given.items() if value is not None})


def _compare(arguments: argparse.Namespace, argv: Sequence[str]) -> int:
    from benchmarks.server.compare import table

    print(table(arguments.results, arguments.workload))
    return 0


def _summary(arguments: argparse.Namespace, argv: Sequence[str]) -> int:
    from benchmarks.server.results import read_folder
    from benchmarks.server.summary import summary

    print(summary(read_folder(arguments.folder)))
    return 0


def _plot(arguments: argparse.Namespace, argv: Sequence[str]) -> int:
    from benchmarks.server.plot import plot
    from benchmarks.server.results import read_folder

    for path in plot(read_folder(arguments.folder), arguments.output or arguments.folder):
        print(f"wrote {path.name}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for name, run, text in (
        ("matrix", _matrix, "start servers and drive them through workloads"),
        ("start", _start, "only start servers"),
        ("drive", _drive, "drive servers that were left running"),
    ):
        _matrix_parser(commands.add_parser(name, help=text), run)
    stop = commands.add_parser("stop", help="stop servers that were left running")
    stop.add_argument("--output", type=Path, required=True)
    stop.set_defaults(run=_stop)
    compare = commands.add_parser("compare", help="print results side by side")
    compare.add_argument("results", type=Path, nargs="+", metavar="RESULT.json")
    compare.add_argument("--workload", help="only this one")
    compare.set_defaults(run=_compare)
    summary = commands.add_parser("summary", help="print the targets, measured, met or missed")
    summary.add_argument("folder", type=Path)
    summary.set_defaults(run=_summary)
    plot = commands.add_parser("plot", help="draw one picture a workload")
    plot.add_argument("folder", type=Path)
    plot.add_argument("--output", type=Path, help="folder of the pictures; default: beside the results")
    plot.set_defaults(run=_plot)
    return parser


def _matrix_parser(parser: argparse.ArgumentParser, run: Callable[..., int]) -> None:
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("--policies", default="all", help="one server after another: a,b; at the same time on one device: a+b; or all")
    add("--workloads", type=_words, default=["cells"], help="see benchmarks/server/README.md")
    add("--depths", type=_ints, default=[], help="depths to hold on the first adaptive server, for static ones")
    add("--host", choices=("gpu", "cpu"), default="gpu")
    add("--models", type=Path, default=Path("/tmp/m"), help="holds llama8b/ and llama8b-eagle3/ (gpu)")
    add("--output", type=Path, required=True, help="folder for results and logs")
    add("--profiles", type=Path, help="folder of saved cost profiles; default: OUTPUT/profiles")
    add("--budget", type=float, default=580.0, metavar="SECONDS", help="for everything, boots included")
    add("--start-timeout", type=float, default=280.0, metavar="SECONDS")
    add("--kv-tokens", type=int, default=100_000, help="KV cache of each server (gpu)")
    add("--prefill-graphs", action="store_true", help="capture CUDA graphs for prefills too (gpu)")
    add("--strict-loads", action="store_true", help="a kernel that loads while serving ends an adaptive server")
    add("--server-arguments", default="", help="more arguments for every server, in one string")
    add(
        "--speculation",
        default="",
        help="arguments of servers that speculate, in one string; default: EAGLE-3 and its draft",
    )
    add(
        "--real-acceptance",
        action="store_true",
        help="accept what the models accept; with dummy weights next to nothing",
    )
    plan = parser.add_argument_group("what a workload does")
    for flag, kind in _PLAN.items():
        plan.add_argument(f"--{flag.replace('_', '-')}", dest=flag, type=kind)


def _ints(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _floats(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _words(text: str) -> list[str]:
    return text.split(",")


_PLAN: dict[str, Callable[[str], Any]] = {
    "batches": _ints, "p": _floats, "decay": float, "tokens": int, "repeats": int, "phase_seconds": float,
    "phases": int, "concurrencies": _ints, "load_p": float, "request_tokens": int, "steady_seconds": float,
    "open_seconds": float, "shares": _floats, "capacity": float, "compare_depths": _ints,
}  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
