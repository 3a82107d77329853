"""Sentences of every demo about its machine, its results and its failures."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_adaptive import provenance
from sglang_adaptive.lab.demo.results import Mismatch, Run, best_static, mean_steps, tokens_per_second

MISMATCHES_SHOWN = 5


def failures(runs: Sequence[Run], wrong: Sequence[Mismatch], *, moves: bool) -> list[str]:
    """Return one line per failure; *moves* says whether an adaptive run that never switched counts as one."""
    lines = [str(mismatch) for mismatch in wrong[:MISMATCHES_SHOWN]]
    if len(wrong) > MISMATCHES_SHOWN:
        lines.append(f"and {len(wrong) - MISMATCHES_SHOWN} more requests with different tokens")
    for run in runs:
        if run.degraded is not None:
            lines.append(f"{run.contender.title}: the policy was set aside: {run.degraded}")
        elif moves and run.contender.adaptive and not run.switches:
            lines.append(f"{run.contender.title}: the depth never moved")
    return lines


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


def warnings(policies: Sequence[str], load: float, gigabytes: float, wanted: float) -> list[str]:
    """Return warnings about the machine's load average, and about free *gigabytes* below *wanted*."""
    remarks = []
    cores = provenance.cpu_cores()
    if load > cores:
        remarks.append(
            f"This machine is busy (load {load:.1f} on {cores} cores): expect a longer run and noisier numbers."
        )
    if gigabytes < wanted:
        fewer = "; --policy ema needs less" if len(policies) > 1 else ""
        remarks.append(f"Only {gigabytes:.1f} GB of memory is free, which may not be enough{fewer}.")
    return remarks
