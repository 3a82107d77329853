"""The two tables: tokens/s of each contender, and its accept length and steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from sglang_adaptive.lab.demo.results import PhaseResult, Run, accept_length, rounds_by_depth, tokens_per_second
from sglang_adaptive.lab.demo.style import Style

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
