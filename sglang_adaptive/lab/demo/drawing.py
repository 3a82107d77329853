"""The demo's tables, and the steps over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from sglang_adaptive.lab.demo.results import (
    PhaseResult,
    Run,
    accept_length,
    best_static,
    rounds_by_depth,
    tokens_per_second,
)
from sglang_adaptive.lab.demo.terminal import UNICODE_MARKS, Style

_NAME, _TEXTS, _LAST = 16, 40, 8
"""Characters of a table's first column, of all text columns together, and of each later column."""


def speed_table(runs: Sequence[Run], columns: Sequence[Sequence[int]], style: Style, decimals: int) -> list[str]:
    """Return the lines of tokens/s and of ratios; each of *columns* has the indices of the phases that it sums."""
    phases = [runs[0].phases[column[0]].phase for column in columns]
    lines = [style.bold("Tokens per second")]
    together = [(requests, len(list(group))) for requests, group in groupby(phase.concurrency for phase in phases)]
    if len(together) > 1:
        width = _TEXTS // len(columns)
        titles = (f"{f'{requests} at a time':^{width * count}}" for requests, count in together)
        lines.append(f"{'':<{_NAME}}{''.join(titles)}".rstrip())
    lines.append(_row("", [phase.family for phase in phases], "overall", "x none", "x best"))
    plain, best = tokens_per_second(runs[0].phases), tokens_per_second(best_static(runs).phases)
    for run in in_table_order(runs):
        rates = [tokens_per_second(run.phases[index] for index in column) for column in columns]
        overall = tokens_per_second(run.phases)
        sums = f"{overall:.{decimals}f}", f"{overall / plain:.2f}", f"{overall / best:.2f}"
        lines.append(
            _emphasised(run, _row(run.contender.title, [f"{rate:.{decimals}f}" for rate in rates], *sums), style)
        )
    return lines


SPEED_NOTE = (
    "Tokens per second: generated tokens divided by wall time at the client. x none and x best: relative to no "
    "speculation and to the best static depth."
)


def family_table(
    title: str, runs: Sequence[Run], families: Sequence[str], style: Style, cell: Callable[[Sequence[PhaseResult]], str]
) -> list[str]:
    """Return one line with a *cell* per family and one for all phases, without the run without speculation."""
    lines = [style.bold(title), _row("", families, "all")]
    for run in in_table_order(runs):
        if run.tiers:
            cells = [cell(run.of(family)) for family in families]
            lines.append(_emphasised(run, _row(run.contender.title, cells, cell(run.phases)), style))
    return lines


def depth_table(runs: Sequence[Run], style: Style) -> list[str]:
    """Return the lines of accept length by family and the share of rounds by steps."""
    speculating = [run for run in in_table_order(runs) if run.tiers]
    depths = sorted({depth for run in speculating for depth in rounds_by_depth(run.phases)})
    lines = [
        style.bold("Accept length and share of rounds at each draft depth"),
        f"{'':<{_NAME}}{'accept length':^19}   share of rounds at depth",
        f"{'':<{_NAME}}{'easy':>6}{'hard':>6}{'all':>6}    " + "".join(f"{depth:>6}" for depth in depths),
    ]
    for run in speculating:
        lengths = "".join(f"{accept_length(run.of(family)) or 0:6.2f}" for family in ("easy", "hard", None))
        row = f"{run.contender.title:<{_NAME}}{lengths}    {_shares(run.phases, depths)}"
        lines.append(_emphasised(run, row, style))
        if run.contender.adaptive:
            for family in ("easy", "hard"):
                lines.append(f"{f'  on {family} text':<{_NAME + 22}}{_shares(run.of(family), depths)}")
    return lines


def in_table_order(runs: Sequence[Run]) -> list[Run]:
    """Return the runs in table order: no speculation, fixed steps, adaptive."""
    return sorted(runs, key=lambda run: (run.contender.adaptive, run.contender.forced_steps or 0))


def _emphasised(run: Run, line: str, style: Style) -> str:
    return style.bold(line) if run.contender.adaptive else line


def _row(name: str, cells: Sequence[str], *last: str) -> str:
    width = _TEXTS // len(cells)
    return (
        f"{name:<{_NAME}}{''.join(f'{cell:>{width}}' for cell in cells)}{''.join(f'{cell:>{_LAST}}' for cell in last)}"
    )


def _shares(results: Sequence[PhaseResult], depths: Sequence[int]) -> str:
    counts = rounds_by_depth(results)
    total = sum(counts.values())
    return "".join(f"{counts[depth] / total:6.0%}" if counts.get(depth) else f"{'-':>6}" for depth in depths)


# Steps over time, as points for the report and as a chart for the terminal.


@dataclass(frozen=True, slots=True)
class Span:
    """A part of one phase with the same steps; times in seconds from the start of the phase."""

    begin: float
    end: float
    steps: int


@dataclass(frozen=True, slots=True)
class Point:
    """From `seconds` on, not counting pauses between phases, `steps` are live."""

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


_MARGIN = "  depth "
_INDENT = " " * (len(_MARGIN) + 4)


def timeline(run: Run, style: Style) -> str:
    """Return the chart of an adaptive run under its title, and how many switches are missing from it."""
    lines = [style.bold(f"{run.contender.title}: draft depth over time"), *draw(run, style)]
    if unseen := sum(phase.switches_unseen for phase in run.phases):
        lines.append(f"  {unseen} {'switch' if unseen == 1 else 'switches'} were too fast to draw")
    return "\n".join(lines)


def draw(run: Run, style: Style) -> list[str]:
    """Return the lines of the chart: a row for each number of steps, the same width for each phase."""
    most, some, bar, corner, floor, tick, end = tuple(UNICODE_MARKS if style.unicode else "#.|+-++")
    width = (style.columns - len(_INDENT) - len(run.phases)) // len(run.phases)
    columns = [_columns(result, width) for result in run.phases]
    lines = [_concurrencies(run, width), _families(run, width, style)]
    for row, depth in enumerate(sorted(run.tiers, reverse=True)):
        cells = (
            style.family("".join(_cell(seen, depth, most, some) for seen in column), result.phase.family)
            for column, result in zip(columns, run.phases, strict=True)
        )
        margin = _MARGIN if row == 0 else " " * len(_MARGIN)
        lines.append(f"{margin}{depth:>2} {bar}{bar.join(cells)}{bar}")
    lines.append(f"{_INDENT[:-1]}{corner}{tick.join(floor * width for _ in run.phases)}{end}")
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


def _cell(seen: dict[int, float], depth: int, most: str, some: str) -> str:
    if depth not in seen:
        return " "
    return most if seen[depth] == max(seen.values()) else some
