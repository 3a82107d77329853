"""What the demo draws on a terminal: its tables, and the steps over time."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TextIO

from sglang_adaptive.lab.demo.results import PhaseResult, Run, accept_length, rounds_by_depth, tokens_per_second

# Columns, colour and characters that the terminal can show.


NARROWEST, WIDEST = 80, 120
PROSE = 100
"""The most columns of a line of text."""


@dataclass(frozen=True, slots=True)
class Style:
    """How to print to one stream."""

    columns: int = NARROWEST
    colour: bool = False
    unicode: bool = True

    @classmethod
    def of(cls, stream: TextIO, environment: Mapping[str, str] = os.environ) -> Style:
        """Return the style for *stream*: colour on a terminal only, and never against NO_COLOR."""
        terminal = is_terminal(stream, environment)
        columns = shutil.get_terminal_size((NARROWEST, 24)).columns
        return cls(
            columns=min(max(columns, NARROWEST), WIDEST),
            colour=terminal and not environment.get("NO_COLOR"),
            unicode=_can_encode(stream, "█░│└─┴┘"),
        )

    def bold(self, text: str) -> str:
        """Return *text* in bold where there is colour."""
        return self._paint(text, "1")

    def dim(self, text: str) -> str:
        """Return *text* faint where there is colour."""
        return self._paint(text, "2")

    def family(self, text: str, family: str) -> str:
        """Return *text* in the colour of a family of text."""
        return self._paint(text, {"easy": "32", "hard": "33"}.get(family, "36"))

    def prose(self, text: str) -> str:
        """Return *text* wrapped into lines."""
        return textwrap.fill(text, min(self.columns, PROSE), break_long_words=False, break_on_hyphens=False)

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text.strip() else text


def is_terminal(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether *stream* is a terminal that can move its cursor."""
    return stream.isatty() and environment.get("TERM") != "dumb"


def _can_encode(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


# The two tables: tokens/s of each contender, and its accept length and steps.


_NAME = 17
_FAMILIES = ("easy", "hard", None)


def in_table_order(runs: Sequence[Run]) -> list[Run]:
    """Return the runs in the order of the tables: no speculation, fixed steps, adaptive."""
    return sorted(runs, key=lambda run: (run.contender.adaptive, run.contender.forced_steps or 0))


def best_static(runs: Sequence[Run]) -> Run:
    """Return the fixed steps with the highest overall tokens/s."""
    static = [run for run in runs if run.contender.forced_steps is not None]
    return max(static, key=lambda run: tokens_per_second(run.phases))


def speed_table(runs: Sequence[Run], style: Style) -> list[str]:
    """Return the lines of tokens/s by phase and overall, with ratios."""
    plain, best = in_table_order(runs)[0], best_static(runs)
    groups = [list(group) for _, group in groupby(plain.phases, key=lambda result: result.phase.concurrency)]
    lines = [style.bold("Tokens per second"), *_speed_heading(groups)]
    for run in in_table_order(runs):
        overall = tokens_per_second(run.phases)
        cells = (f"{tokens_per_second([result]):6.0f}" for result in run.phases)
        row = f"{run.contender.title:<{_NAME}}{_spaced(cells, groups)}{overall:9.0f}"
        row += f"{overall / tokens_per_second(plain.phases):8.2f}{overall / tokens_per_second(best.phases):8.2f}"
        lines.append(style.bold(row) if run.contender.adaptive else row)
    return lines


def depth_table(runs: Sequence[Run], style: Style) -> list[str]:
    """Return the lines of accept length by family and the share of rounds by steps."""
    speculating = [run for run in in_table_order(runs) if run.tiers]
    depths = sorted({depth for run in speculating for depth in rounds_by_depth(run.phases)})
    lines = [
        style.bold("Accept length, and share of rounds at each draft depth"),
        f"{'':<{_NAME}}{'accept length':^19}   share of rounds at depth",
        f"{'':<{_NAME}}{'easy':>6}{'hard':>6}{'all':>6}    " + "".join(f"{depth:>6}" for depth in depths),
    ]
    for run in speculating:
        lengths = "".join(f"{accept_length(run.of(family)) or 0:6.2f}" for family in _FAMILIES)
        row = f"{run.contender.title:<{_NAME}}{lengths}    {_shares(run.phases, depths)}"
        lines.append(style.bold(row) if run.contender.adaptive else row)
        if run.contender.adaptive:
            for family in ("easy", "hard"):
                lines.append(f"{f'  on {family} text':<{_NAME + 22}}{_shares(run.of(family), depths)}")
    return lines


def _speed_heading(groups: list[list[PhaseResult]]) -> list[str]:
    titles = (f"{f'{group[0].phase.concurrency} at a time':^{6 * len(group)}}" for group in groups)
    families = (f"{result.phase.family:>6}" for group in groups for result in group)
    return [
        f"{'':<{_NAME}}{'  '.join(titles)}{'':9}{'x no':>8}{'x best':>8}",
        f"{'':<{_NAME}}{_spaced(families, groups)}{'overall':>9}{'spec.':>8}{'static':>8}",
    ]


def _spaced(cells: object, groups: list[list[PhaseResult]]) -> str:
    """Join one cell a phase, with a gap between the concurrencies."""
    remaining = iter(cells)  # type: ignore[call-overload]
    return "  ".join("".join(next(remaining) for _ in group) for group in groups)


def _shares(results: Sequence[PhaseResult], depths: Sequence[int]) -> str:
    counts = rounds_by_depth(results)
    total = sum(counts.values())
    return "".join(f"{counts[depth] / total:6.0%}" if counts.get(depth) else f"{'-':>6}" for depth in depths)


# The steps over time, as points for the report and as a chart for the terminal.


@dataclass(frozen=True, slots=True)
class Span:
    """A part of one phase with the same steps; times in seconds from the start of the phase."""

    begin: float
    end: float
    steps: int


@dataclass(frozen=True, slots=True)
class Point:
    """From `seconds` on, without the pauses between phases, `steps` are live."""

    policy: str
    phase: str
    seconds: float
    steps: int


def spans(result: PhaseResult) -> list[Span]:
    """Return the steps of a phase from its start to its end; empty without speculation."""
    if result.first_steps is None:
        return []
    found: list[Span] = []
    at, steps = 0.0, result.first_steps
    for switch in result.switches:
        moment = min(max(switch.time - result.begin, at), result.seconds)
        if moment > at:
            found.append(Span(at, moment, steps))
        at, steps = moment, switch.to_steps
    found.append(Span(at, result.seconds, steps))
    return found


def points(run: Run) -> list[Point]:
    """Return the timeline of a run: one point at the start of each phase, one at each switch."""
    found: list[Point] = []
    before = 0.0
    for result in run.phases:
        for span in spans(result):
            seconds = round(before + span.begin, 4)
            found.append(Point(run.contender.key, result.phase.name, seconds, span.steps))
        before += result.seconds
    return found


@dataclass(frozen=True, slots=True)
class _Marks:
    most: str
    some: str
    bar: str
    corner: str
    floor: str
    tick: str
    end: str


_UNICODE = _Marks("█", "░", "│", "└", "─", "┴", "┘")
_ASCII = _Marks("#", ".", "|", "+", "-", "+", "+")
_MARGIN = "  depth "
_INDENT = " " * (len(_MARGIN) + 4)


def draw(run: Run, style: Style) -> list[str]:
    """Return the lines of the chart: a row for each number of steps, the same width for each phase."""
    marks = _UNICODE if style.unicode else _ASCII
    width = (style.columns - len(_INDENT) - len(run.phases)) // len(run.phases)
    columns = [_columns(result, width) for result in run.phases]
    lines = [_concurrencies(run, width), _families(run, width, style)]
    for row, depth in enumerate(sorted(run.tiers, reverse=True)):
        cells = (
            style.family("".join(_cell(seen, depth, marks) for seen in column), result.phase.family)
            for column, result in zip(columns, run.phases, strict=True)
        )
        margin = _MARGIN if row == 0 else " " * len(_MARGIN)
        lines.append(f"{margin}{depth:>2} {marks.bar}{marks.bar.join(cells)}{marks.bar}")
    floor = marks.tick.join(marks.floor * width for _ in run.phases)
    lines.append(f"{_INDENT[:-1]}{marks.corner}{floor}{marks.end}")
    return [*lines, _durations(run, width)]


def _concurrencies(run: Run, width: int) -> str:
    """Return the line with the concurrent requests above their phases."""
    labels = []
    for concurrency, group in groupby(run.phases, key=lambda result: result.phase.concurrency):
        label = "one request at a time" if concurrency == 1 else f"{concurrency} requests at a time"
        labels.append(f"{label:^{(width + 1) * len(list(group)) - 1}}")
    return (_INDENT + " ".join(labels)).rstrip()


def _families(run: Run, width: int, style: Style) -> str:
    families = [result.phase.family for result in run.phases]
    names = [f"{family:^{width}}" for family in families]
    names[-1] = names[-1].rstrip()
    return _INDENT + " ".join(map(style.family, names, families))


def _durations(run: Run, width: int) -> str:
    return (_INDENT + " ".join(f"{f'{result.seconds:.1f} s':^{width}}" for result in run.phases)).rstrip()


def _columns(result: PhaseResult, width: int) -> list[dict[int, float]]:
    """Return, for each column of a phase, the seconds in it by live steps."""
    seconds: list[dict[int, float]] = [defaultdict(float) for _ in range(width)]
    for span in spans(result):
        for column, share in _pieces(span, result.seconds / width, width):
            seconds[column][span.steps] += share
    return seconds


def _pieces(span: Span, step: float, width: int) -> Iterator[tuple[int, float]]:
    first, last = int(span.begin / step), min(int(span.end / step), width - 1)
    for column in range(first, last + 1):
        share = min(span.end, (column + 1) * step) - max(span.begin, column * step)
        if share > 0:
            yield column, share


def _cell(seen: dict[int, float], depth: int, marks: _Marks) -> str:
    if depth not in seen:
        return " "
    return marks.most if seen[depth] == max(seen.values()) else marks.some
