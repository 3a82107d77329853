"""Describes the result in sentences, and lists the failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sglang_adaptive.lab.demo.lossless import Mismatch
from sglang_adaptive.lab.demo.results import Run, rounds_by_depth, tokens_per_second
from sglang_adaptive.lab.demo.table import best_static

MISMATCHES_SHOWN = 5


def sentences(runs: Sequence[Run]) -> list[str]:
    """Return sentences about the steps over time and about the fastest contender."""
    adaptive = [run for run in runs if run.contender.adaptive]
    return [*map(_where_it_went, adaptive), who_was_fastest(runs, adaptive)]


def failures(runs: Sequence[Run], wrong: Sequence[Mismatch]) -> list[str]:
    """Return one line for each failure; empty when the demo succeeded."""
    lines = [str(mismatch) for mismatch in wrong[:MISMATCHES_SHOWN]]
    if len(wrong) > MISMATCHES_SHOWN:
        lines.append(f"and {len(wrong) - MISMATCHES_SHOWN} more requests whose tokens differ")
    for run in runs:
        if run.degraded is not None:
            lines.append(f"{run.contender.title}: the policy was set aside: {run.degraded}")
        elif run.contender.adaptive and not run.switches:
            lines.append(f"{run.contender.title}: the depth never moved")
    return lines


def _where_it_went(run: Run) -> str:
    easy, hard = _mean_depth(run, "easy"), _mean_depth(run, "hard")
    moved = f"the depth moved {run.switches} {'time' if run.switches == 1 else 'times'}"
    said = f"{run.contender.title}: {moved}; a round drafted {easy:.1f} tokens on easy text and {hard:.1f} on hard"
    return f"{said} text, on average." if easy > hard else f"{said}, so in this run it did not follow the text."


def _mean_depth(run: Run, family: str) -> float:
    """Return the mean steps of the server's rounds on a family of text."""
    counts = rounds_by_depth(run.of(family))
    return sum(depth * count for depth, count in counts.items()) / sum(counts.values())


def who_was_fastest(runs: Sequence[Run], adaptive: Sequence[Run]) -> str:
    """Return the fastest contender, and the adaptive ones against the best fixed steps and no speculation."""
    rate = {run.contender.title: tokens_per_second(run.phases) for run in runs}
    fastest = max(rate, key=lambda title: rate[title])
    best, plain = best_static(runs).contender.title, runs[0].contender.title
    against_best = _ratios(adaptive, rate, best)
    against_plain = _ratios(adaptive, rate, plain)
    return (
        f"Fastest overall in this run: {fastest}, {rate[fastest]:.3g} tokens/s. Against the best static depth "
        f"({best}, known only afterwards): {against_best}. Against no speculation: {against_plain}."
    )


def _ratios(adaptive: Sequence[Run], rate: Mapping[str, float], reference: str) -> str:
    titles = (run.contender.title for run in adaptive)
    return ", ".join(f"{title} {rate[title] / rate[reference]:.2f} times" for title in titles)
