"""Tables of the documentation that come from the source: commands, configuration, hooks, metrics, launch lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from sglang_adaptive.cli import COMMANDS
from sglang_adaptive.command_line import PROGRAM, CommandParser
from sglang_adaptive.policy.base import POLICIES
from sglang_adaptive.policy.config import AdaptiveConfig, AuditOptions, TraceOptions
from sglang_adaptive.policy.ema import SlotConfig
from sglang_adaptive.policy.options import MAX_STEPS, reference
from sglang_adaptive.policy.throughput import ThroughputOptions
from sglang_adaptive.sglang_plugin.features import FEATURES
from sglang_adaptive.sglang_plugin.hooks import Process
from sglang_adaptive.sglang_plugin.hooks import hooks as declared
from sglang_adaptive.sglang_plugin.stages.reporting import METRICS, PREFIX, most_series

ROOT = Path(__file__).parents[1]
Tables = dict[str, list[str]]
"""Lines by the name in a page's markers."""


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose first row is its head."""
    head, *body = rows
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *body)]


# -- docs/cli.md ----------------------------------------------------------------------------------------------------


LONG = 80
"""Columns of an example from which its meaning has a line of its own."""


def commands() -> Tables:
    """Return the commands, from their parsers."""
    return {"commands": [line for module, _ in COMMANDS.values() for line in _command(import_module(module).parser())]}


def _command(parser: CommandParser) -> Iterator[str]:
    yield f"\n## {parser.name}\n"
    for paragraph in parser.purpose.split("\n\n"):
        wrapped = textwrap.fill(paragraph, 120, break_on_hyphens=False)
        yield f"```\n{paragraph}\n```\n" if paragraph.startswith("  ") else f"{wrapped}\n"
    if parser.usage:
        yield f"```\n{parser.usage}\n```\n"
    yield "```bash"
    lines = [(f"{PROGRAM} {parser.name} {arguments}".rstrip(), meaning) for arguments, meaning in parser.examples]
    width = max((len(line) for line, _ in lines if len(line) < LONG), default=0)
    for line, meaning in lines:
        yield f"{line:{width}}  # {meaning}" if len(line) < LONG else f"# {meaning}\n{line}"
    yield "```"


# -- docs/configuration.md ------------------------------------------------------------------------------------------


def configuration() -> Tables:
    """Return the keys, from the options, and the features."""
    names = " or ".join(f'"{name}"' for name in POLICIES)
    watch, *server = reference(AdaptiveConfig)
    options = {name: reference(kind.options) for name, kind in POLICIES.items()}
    return {
        "top": _keys([("policy", "see below", names, "which policy chooses the depth"), watch]),
        "server": _keys(server),
        "trace": _keys(reference(TraceOptions)),
        "audit": _keys(reference(AuditOptions)),
        "slots": _keys(reference(SlotConfig)),
        "features": markdown(
            [
                ("Feature", "What it does", "Without it"),
                *((f"`{name}`", one.does, one.without) for name, one in FEATURES.items()),
            ]
        ),
        **{name: _keys(rows) for name, rows in options.items() if rows},  # slots are not an object of options
    }


def _keys(rows: Sequence[tuple[str, ...]]) -> list[str]:
    return markdown([("Key", "Default", "Accepted", "Meaning"), *((f"`{name}`", *rest) for name, *rest in rows)])


# -- docs/compatibility.md ------------------------------------------------------------------------------------------


def setups() -> list[str]:
    """Return the facts of setups with the features that they rule out."""
    ruled_out: dict[str, list[str]] = {}
    for name, feature in FEATURES.items():
        for fact in feature.excludes:
            ruled_out.setdefault(fact.phrase, []).append(f"`{name}`")
    return markdown(
        [("Setup", "Features that are off"), *((fact, ", ".join(names)) for fact, names in ruled_out.items())]
    )


# -- docs/hooks.md --------------------------------------------------------------------------------------------------


def hooks() -> Tables:
    """Return the hooks, from the seams of the plugin."""
    lines = ["| SGLang's functions, below `sglang.srt` | | By | What it does there |", "|---|---|---|---|"]
    for process in Process:
        lines.append(f"| **{process.value}** | | | |")
        targets: dict[tuple[str, ...], list[str]] = {}
        for hook in declared(process):
            name = hook.function.__qualname__
            if not name.startswith("Stage."):
                name = f"{hook.function.__module__.rpartition('.')[2]}.{name}"
            purpose = (hook.function.__doc__ or "").partition("\n")[0].replace("|", "\\|")
            target = f"`{hook.target.removeprefix('sglang.srt.')}`"
            targets.setdefault((hook.kind, f"`{name}`", purpose), []).append(target)
        lines += [f"| {', '.join(hooked)} | {' | '.join(ours)} |" for ours, hooked in targets.items()]
    return {"hooks": lines}


# -- docs/monitoring.md ---------------------------------------------------------------------------------------------


def metrics() -> Tables:
    """Return every metric, and how many series there can be."""
    rows = [("Metric", "Type", "Label", "Needs", "Meaning")]
    for metric in METRICS:
        label = f"`{metric.label}`" if metric.label else ""
        rows.append(
            (f"`{PREFIX}{metric.name}`", metric.kind, label, f"`{metric.needs}`" if metric.needs else "", metric.help)
        )
    ladder = ThroughputOptions().candidate_steps
    usual, most = most_series(len(ladder), ladder[-1]), most_series(MAX_STEPS + 1, MAX_STEPS)
    bounds = [
        f"A scheduler has {usual} series with the default candidate steps, and at most {most}. Their number does not",
        "grow with requests or time.",
    ]
    return {"metrics": markdown(rows), "series": bounds}
