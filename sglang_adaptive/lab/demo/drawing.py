"""The demo's tables, the steps over time, and the sentences about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from rich.box import SQUARE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sglang_adaptive.lab.demo.results import (
    Phase,
    PhaseResult,
    Run,
    accept_length,
    best_static,
    mean_steps,
    rounds_by_depth,
    tokens_per_second,
)

COLOURS = {"easy": "green", "hard": "yellow"}
"""Of the text families; cyan for others."""


def speed_table(runs: Sequence[Run], columns: Sequence[Sequence[int]], decimals: int) -> Table:
    """Return tokens/s and ratios; each of *columns* has the indices of the phases that it sums."""
    phases = [runs[0].phases[column[0]].phase for column in columns]
    table = _table("Tokens per second", *map(_heading, phases), "overall", "x none", "x best")
    plain, best = tokens_per_second(runs[0].phases), tokens_per_second(best_static(runs).phases)
    for run in in_table_order(runs):
        rates = [tokens_per_second([run.phases[index] for index in column]) for column in columns]
        overall = tokens_per_second(run.phases)
        cells = [f"{rate:.{decimals}f}" for rate in (*rates, overall)]
        _add(table, run, *cells, f"{overall / plain:.2f}", f"{overall / best:.2f}")
    return table


SPEED_NOTE = (
    "Tokens per second: generated tokens divided by wall time at the client. x none and x best: relative to no "
    "speculation and to the best static depth."
)


def family_table(title: str, runs: Sequence[Run], cell: Callable[[Sequence[PhaseResult]], str]) -> Table:
    """Return a *cell* per family and one for all phases, without the run without speculation."""
    families = dict.fromkeys(result.phase.family for result in runs[0].phases)
    table = _table(title, *families, "all")
    for run in in_table_order(runs):
        if run.tiers:
            _add(table, run, *(cell(run.of(family)) for family in families), cell(run.phases))
    return table


def depth_table(runs: Sequence[Run]) -> Table:
    """Return accept length by family and the share of rounds by steps."""
    speculating = [run for run in in_table_order(runs) if run.tiers]
    depths = sorted({depth for run in speculating for depth in rounds_by_depth(run.phases)})
    names = [*("easy", "hard", "all"), *(f"depth {depth}" for depth in depths)]
    table = _table("Accept length and share of rounds at each draft depth", *names)
    for run in speculating:
        lengths = [f"{accept_length(run.of(family)):.2f}" for family in ("easy", "hard", None)]
        _add(table, run, *lengths, *_shares(run.phases, depths))
        if run.contender.adaptive:
            for family in ("easy", "hard"):
                table.add_row(f"  on {family} text", "", "", "", *_shares(run.of(family), depths))
    return table


def in_table_order(runs: Sequence[Run]) -> list[Run]:
    """Return the runs in table order: no speculation, fixed steps, adaptive."""
    return sorted(runs, key=lambda run: (run.contender.adaptive, run.contender.forced_steps or 0))


def _table(title: str, *names: str) -> Table:
    """Return a table of figures beside the names of the runs."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    return table


def _add(table: Table, run: Run, *cells: str) -> None:
    table.add_row(run.contender.title, *cells, style="bold" if run.contender.adaptive else "")


def _heading(phase: Phase) -> str:
    return phase.family if phase.concurrency == 1 else f"{phase.family}\nx{phase.concurrency}"


def _shares(results: Sequence[PhaseResult], depths: Sequence[int]) -> list[str]:
    counts = rounds_by_depth(results)
    return [f"{counts[depth] / counts.total():.0%}" if counts[depth] else "-" for depth in depths]


# Steps over time, as a chart.


def spans(result: PhaseResult) -> list[tuple[float, float, int]]:
    """Return the parts of a phase with the same steps: begin and end in seconds from its start, and the steps.

    Empty without speculation.
    """
    if result.first_steps is None:
        return []
    found: list[tuple[float, float, int]] = []
    at, steps = 0.0, result.first_steps
    for switched, to_steps in result.switches:
        moment = min(max(switched - result.begin, at), result.seconds)
        if moment > at:
            found.append((at, moment, steps))
        at, steps = moment, to_steps
    return [*found, (at, result.seconds, steps)]


def timeline(run: Run, console: Console) -> Table:
    """Return the chart of an adaptive run: a row for each number of steps, the same width for each phase."""
    most, some = "#." if console.options.ascii_only else "█░"
    width = (console.width - len("|depth|")) // len(run.phases) - 1
    table = Table(title=f"{run.contender.title}: draft depth over time", title_justify="left", title_style="bold")
    table.box, table.padding, table.show_footer = SQUARE, (0, 0, 0, 0), True
    table.add_column("depth", justify="right")
    for result in run.phases:
        colour = COLOURS.get(result.phase.family, "cyan")
        name = Text(_heading(result.phase), colour)
        table.add_column(name, f"{result.seconds:.1f} s", width=width, style=colour)
    columns = [_columns(result, width) for result in run.phases]
    for depth in sorted(run.tiers, reverse=True):
        table.add_row(str(depth), *("".join(_cell(seen, depth, most, some) for seen in column) for column in columns))
    if unseen := sum(phase.switches_unseen for phase in run.phases):
        table.caption = f"{unseen} {'switch' if unseen == 1 else 'switches'} were too fast to draw"
    return table


def _columns(result: PhaseResult, width: int) -> list[dict[int, float]]:
    """Return, for each column of a phase, the seconds in it by live steps."""
    seconds: list[dict[int, float]] = [defaultdict(float) for _ in range(width)]
    step = result.seconds / width
    for begin, end, steps in spans(result):
        for column, seen in enumerate(seconds):
            if (share := min(end, (column + 1) * step) - max(begin, column * step)) > 0:
                seen[steps] += share
    return seconds


def _cell(seen: dict[int, float], depth: int, most: str, some: str) -> str:
    if depth not in seen:
        return " "
    return most if seen[depth] == max(seen.values()) else some


def where_it_went(run: Run) -> str:
    """Return how often the steps of an adaptive run changed, and whether they followed the text."""
    easy, hard = mean_steps(run.of("easy")), mean_steps(run.of("hard"))
    moved = f"the depth moved {run.switches} {'time' if run.switches == 1 else 'times'}"
    said = f"{run.contender.title}: {moved}; rounds drafted {easy:.1f} tokens on easy text and {hard:.1f} on hard"
    return f"{said} text on average." if easy > hard else f"{said}, so in this run it did not follow the text."


def who_was_fastest(runs: Sequence[Run]) -> str:
    """Return the fastest contender, and how the adaptive ones compare to the best fixed steps and no speculation."""
    rate = {run.contender.title: tokens_per_second(run.phases) for run in runs}
    adaptive = [run.contender.title for run in runs if run.contender.adaptive]
    fastest = max(rate, key=lambda title: rate[title])
    best, plain = best_static(runs).contender.title, runs[0].contender.title

    def against(reference: str) -> str:
        return ", ".join(f"{title} {rate[title] / rate[reference]:.2f} times" for title in adaptive)

    return (
        f"Fastest overall in this run: {fastest}, {rate[fastest]:.3g} tokens/s. Compared with the best static depth "
        f"({best}, known only afterward): {against(best)}. Compared with no speculation: {against(plain)}."
    )
