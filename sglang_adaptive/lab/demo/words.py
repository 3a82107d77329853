"""The texts of the demo around its tables, and the result in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sglang_adaptive import provenance
from sglang_adaptive.lab.demo.drawing import Style, best_static, depth_table, draw, speed_table
from sglang_adaptive.lab.demo.results import SEVERAL, Mismatch, Run, rounds_by_depth, tokens_per_second

# Describes the result in sentences, and lists the failures.


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


GIGABYTES_A_SERVER = 2.4
"""Measured as proportional set size of three warm servers: 6.8 GiB together, mostly of PyTorch."""


def introduction(style: Style, policies: Sequence[str], load: float) -> str:
    """Return the introduction, for a reader who is new to the project."""
    sglang = provenance.versions("sglang")["sglang"]
    return "\n\n".join(
        [
            style.prose(
                "Speculative decoding drafts a few tokens ahead with a small model and lets the large one verify "
                "them in one round. How many to draft (the depth) should follow the text: easy text accepts long "
                "drafts, hard text wastes them. sglang-adaptive chooses the depth while the server runs."
            ),
            style.prose(
                f"This demo starts {len(policies) + 1} real SGLang {sglang} servers on this machine's CPU, with a "
                "tiny byte-level Llama and its EAGLE-3 draft, and lets each write the same text: easy, hard, easy, "
                f"first one request at a time, then {SEVERAL}. It takes about three minutes on two cores, and "
                f"{_gigabytes(policies):.0f} GB of memory. Ctrl-C stops it and everything that it started."
            ),
            *map(style.prose, warnings(policies, load, available_gigabytes())),
        ]
    )


def all_findings(runs: Sequence[Run], style: Style) -> str:
    """Return tables, timelines and the sentences about them."""
    blocks = ["\n".join(speed_table(runs, style)), "\n".join(depth_table(runs, style))]
    blocks.append(style.prose(_table_notes()))
    for run in runs:
        if run.contender.adaptive:
            title = style.bold(f"{run.contender.title}: draft depth over time")
            blocks.append("\n".join([title, *draw(run, style), *_unseen(run)]))
    blocks.append("\n".join(style.prose(sentence) for sentence in sentences(runs)))
    blocks.append(
        style.prose(
            "Read this as behaviour, not as speed: the CPU engine is made for trying and testing, rounds cost "
            "other amounts on a GPU, and whatever else this machine did meanwhile shows in the tokens per second."
        )
    )
    return "\n\n".join(blocks)


def kept(url: str, pid: int, title: str, folder: Path) -> str:
    """Return how to use, and how to stop, the server that was left running."""
    json_header = "-H 'Content-Type: application/json'"
    ask = r'{"text": "4210 olive caps\n4211 olive caps\n", "sampling_params": {"temperature": 0, "max_new_tokens": 64}}'
    hold = '{"server_args": {"adaptive_force_steps": 3}}'
    release = '{"server_args": {"adaptive_force_steps": null}}'
    return "\n".join(
        [
            f"The {title} server is still running at {url}",
            f"  log and configuration: {folder}",
            "  generate:",
            f"    curl -s {url}/generate {json_header} \\\n      -d '{ask}'",
            "  what it does (policy, depth, switches), under internal_states[0].adaptive:",
            f"    curl -s {url}/server_info",
            "  hold the depth at 3, and release it:",
            f"    curl -s {url}/set_internal_state {json_header} \\\n      -d '{hold}'",
            f"    curl -s {url}/set_internal_state {json_header} \\\n      -d '{release}'",
            "  stop it (takes some seconds):",
            f"    kill {pid}",
        ]
    )


def warnings(policies: Sequence[str], load: float, gigabytes: float | None, wanted: float | None = None) -> list[str]:
    """Return warnings about the machine's load average and its free *gigabytes*.

    *wanted* are the gigabytes that the servers need, by default those of the tiny pair.
    """
    remarks = []
    wanted = _gigabytes(policies) if wanted is None else wanted
    cores = provenance.cpu_cores()
    if load > cores:
        remarks.append(
            f"This machine is busy (load {load:.1f} on {cores} cores): expect a longer run and unsteady numbers."
        )
    if gigabytes is not None and gigabytes < wanted:
        fewer = "; --policy ema needs less" if len(policies) > 1 else ""
        remarks.append(f"Only {gigabytes:.1f} GB of memory are free, which may not be enough{fewer}.")
    return remarks


def _gigabytes(policies: Sequence[str]) -> float:
    return GIGABYTES_A_SERVER * (len(policies) + 1)


def available_gigabytes() -> float | None:
    """Return the available memory in GB; None where the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) / 2**20 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None


def _table_notes() -> str:
    return (
        "Tokens per second: generated tokens over wall time, seen by the client. Accept length: tokens that a "
        "verify round yields for a request, at least 1. Static N: the server of the first adaptive row, its depth "
        "held at N through adaptive_force_steps, so with the same backends and buffers. Every server was warmed "
        "up at each depth first, and one was measured at a time."
    )


def _unseen(run: Run) -> list[str]:
    count = sum(phase.switches_unseen for phase in run.phases)
    switches = "1 switch" if count == 1 else f"{count} switches"
    return [f"  {switches} came too fast to be drawn"] if count else []
