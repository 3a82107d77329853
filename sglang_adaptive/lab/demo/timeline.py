"""The steps over time, as points for the report and as a chart for the terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from sglang_adaptive.lab.demo.results import PhaseResult, Run
from sglang_adaptive.lab.demo.style import Style


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
