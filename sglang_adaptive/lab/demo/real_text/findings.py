"""The contest's results: a table by kind of text, the steps over time, and the fastest contender."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sglang_adaptive.lab.demo.drawing import Style, best_static, draw, in_table_order
from sglang_adaptive.lab.demo.real_text.contest import QUESTIONS
from sglang_adaptive.lab.demo.results import PhaseResult, Run, accept_length, rounds_by_depth, tokens_per_second
from sglang_adaptive.lab.demo.words import who_was_fastest

_NAME, _CELL, _LAST = 16, 10, 8


def findings(runs: Sequence[Run], style: Style) -> str:
    """Return tables, timelines and the sentences about them."""
    adaptive = [run for run in runs if run.contender.adaptive]
    blocks = ["\n".join(_speed(runs, style)), "\n".join(_accepted(runs, style)), "\n".join(_shares(runs, style))]
    blocks += ["\n".join([style.bold(f"{run.contender.title}: draft steps over time"), *draw(run, style)])
               for run in adaptive]  # fmt: skip
    blocks.append(style.prose(who_was_fastest(runs, adaptive)))
    blocks.append(
        style.prose(
            "Tokens per second: generated tokens over wall time, seen by the client; x none and x best: over no "
            "speculation, and over the best static depth. The contenders took turns at each question. These "
            "ratios are of this machine: a round costs other amounts on a GPU."
        )
    )
    return "\n\n".join(blocks)


def failures(runs: Sequence[Run], mismatches: Sequence[object]) -> list[str]:
    """Return one line for each failure."""
    lines = [str(mismatch) for mismatch in mismatches]
    return lines + [f"{run.contender.title}: the policy was set aside: {run.degraded}" for run in runs if run.degraded]


def _speed(runs: Sequence[Run], style: Style) -> list[str]:
    plain, best = tokens_per_second(runs[0].phases), tokens_per_second(best_static(runs).phases)
    last = ("overall", "x none", "x best")
    lines = [style.bold("Tokens per second"), _row("", [*QUESTIONS], last)]
    for run in in_table_order(runs):
        rates = [f"{tokens_per_second(run.of(kind)):.1f}" for kind in QUESTIONS]
        overall = tokens_per_second(run.phases)
        row = _row(run.contender.title, rates, (f"{overall:.1f}", f"{overall / plain:.2f}", f"{overall / best:.2f}"))
        lines.append(style.bold(row) if run.contender.adaptive else row)
    return lines


def _accepted(runs: Sequence[Run], style: Style) -> list[str]:
    lines = [style.bold("Tokens a round (accept length)"), _row("", [*QUESTIONS], ("all",))]
    return lines + _rows(runs, style, lambda results: f"{accept_length(results) or 0:.2f}")


def _shares(runs: Sequence[Run], style: Style) -> list[str]:
    lines = [style.bold("Draft steps of a round, on average"), _row("", [*QUESTIONS], ("all",))]
    return lines + _rows(runs, style, _mean_steps)


def _rows(runs: Sequence[Run], style: Style, cell: Callable[[Sequence[PhaseResult]], str]) -> list[str]:
    lines = []
    for run in in_table_order(runs):
        if run.tiers:
            row = _row(run.contender.title, [cell(run.of(kind)) for kind in QUESTIONS], (cell(run.phases),))
            lines.append(style.bold(row) if run.contender.adaptive else row)
    return lines


def _mean_steps(results: Sequence[PhaseResult]) -> str:
    rounds = rounds_by_depth(results)
    total = sum(rounds.values())
    return f"{sum(steps * count for steps, count in rounds.items()) / total:.1f}" if total else "-"


def _row(name: str, cells: Sequence[str], last: Sequence[str]) -> str:
    return (
        f"{name:<{_NAME}}{''.join(f'{cell:>{_CELL}}' for cell in cells)}{''.join(f'{cell:>{_LAST}}' for cell in last)}"
    )
