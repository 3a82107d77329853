"""``sglang-adaptive report``: parse, read the results, write the page."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from sglang_adaptive.command_line import BAD_INPUT, DONE, CommandParser, failed, new_file
from sglang_adaptive.report import demo, server, simulation
from sglang_adaptive.report.blocks import Section
from sglang_adaptive.report.html import html
from sglang_adaptive.report.markdown import markdown
from sglang_adaptive.report.results import DEMO, SERVER, SIMULATION, TEXT, TRAFFIC, ReportError, Result, read

TITLE = "Adaptive speculation: results"


def parser() -> CommandParser:
    found = CommandParser(
        "report",
        "Makes one page of benchmark results from the files that demo --json, simulate --json and "
        "python -m benchmarks.policies wrote. Server benchmarks on the same hardware are compared with each other. "
        "HTML has charts and loads nothing from elsewhere; Markdown has the tables and goes to standard output unless "
        "you name a file.",
        [
            ("benchmarks/results/h200/cells.json", "policies against static depths on a GPU, as Markdown"),
            ("benchmarks/results/simulation/simulate.json --html simulation.html", "a simulation as a page"),
        ],
        "0 done; 2 a file is not a result, or bad usage",
    )
    found.add_argument("results", nargs="+", type=Path, metavar="RESULT", help="a result file (JSON)")
    found.add_argument("--html", type=new_file, metavar="FILE", help="write the page as HTML")
    found.add_argument("--md", type=new_file, metavar="FILE", help="write the page as Markdown")
    found.add_argument("--title", default=TITLE, metavar="TEXT", help="title of the page (default: %(default)s)")
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command; returns 0, or 2 if a file is not a result or the page cannot be written."""
    arguments = parser().parse_args(argv)
    try:
        found = list(sections([read(path) for path in arguments.results]))
    except ReportError as error:
        return failed("report", str(error), BAD_INPUT)
    pages = [(arguments.html, html), (arguments.md, markdown)]
    if not any(path for path, _ in pages):
        print(markdown(arguments.title, found), end="")
    for path, write in pages:
        if path is not None:
            try:
                path.write_text(write(arguments.title, found), encoding="utf-8")
            except OSError as error:
                return failed("report", f"{path}: cannot be written ({error.strerror})", BAD_INPUT)
            print(f"wrote {path}", file=sys.stderr)
    return DONE


def sections(results: Sequence[Result]) -> Iterator[Section]:
    """Yield the sections of a report: demos, server benchmarks, simulations. Raises ReportError."""
    for result in results:
        _check(result)
    for kind, build in _BUILD.items():
        yield from build([result for result in results if result.kind == kind])


_BUILD: dict[str, Callable[[list[Result]], Iterable[Section]]] = {
    DEMO: lambda results: map(demo.section, results),
    SERVER: server.sections,
    SIMULATION: lambda results: map(simulation.drawn, results),
    TEXT: lambda results: map(simulation.recorded, results),
    TRAFFIC: lambda results: map(simulation.traffic, results),
}


def _check(result: Result) -> None:
    """Build *result* alone, so that an incomplete file is named. Raises ReportError."""
    try:
        list(_BUILD[result.kind]([result]))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ReportError(f"{result.name}: is not a complete {result.kind} result ({what})") from error
