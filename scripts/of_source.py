"""Tables of the documentation that come from the source: commands, configuration, hooks, metrics, launch lines."""

from __future__ import annotations

import argparse
import ast
import textwrap
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from sglang_adaptive.cli import COMMANDS
from sglang_adaptive.command_line import PROGRAM, CommandParser
from sglang_adaptive.policy.config.schema import (
    CANDIDATE_STEPS,
    CANDIDATE_STEPS_EXPECTED,
    MAX_STEPS,
    POLICY_NAMES,
    SWITCHES,
    TUNING_KEYS,
    WATCH,
    WATCH_EXPECTED,
    ZERO_STEP_EXTEND_EVERY,
    NumberKey,
)
from sglang_adaptive.policy.config.throughput_options import (
    DEFAULT_LADDER,
    NUMBER_KEYS,
    PROFILE_DIR,
    PROFILE_DIR_EXPECTED,
    VERIFY_BUDGET,
)
from sglang_adaptive.policy.config.trace_options import FILE, FILE_EXPECTED, MAX_MB, TRACE, TRACE_EXPECTED
from sglang_adaptive.sglang_plugin.hooking import registry
from sglang_adaptive.sglang_plugin.hooking.hook import Process
from sglang_adaptive.sglang_plugin.reporting.metric_series import METRICS, PREFIX, most_series

ROOT = Path(__file__).parents[1]
Tables = dict[str, list[str]]
"""Lines by the name in a page's markers."""


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose first row is its head."""
    head, *body = rows
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *body)]


# -- docs/cli.md ----------------------------------------------------------------------------------------------------


def commands() -> Tables:
    """Return the commands, from their parsers."""
    rows = [("Command", "What it does"), *((f"[`{name}`](#{name})", what) for name, (_, what) in COMMANDS.items())]
    return {
        "commands": [
            *markdown(rows),
            *(line for module, _ in COMMANDS.values() for line in _command(import_module(module).parser())),
        ]
    }


def _command(parser: CommandParser) -> Iterator[str]:
    yield f"\n## {parser.name}\n"
    for paragraph in parser.purpose.split("\n\n"):
        wrapped = textwrap.fill(paragraph, 120, break_on_hyphens=False)
        yield f"```\n{paragraph}\n```\n" if paragraph.startswith("  ") else f"{wrapped}\n"
    yield f"```\n{_usage(parser)}\n```\n"
    actions = [action for action in parser._actions if "--help" not in action.option_strings]
    yield from markdown([("Argument", "Meaning"), *((f"`{_name(one)}`", _meaning(parser, one)) for one in actions)])
    yield "\n```bash"
    for arguments, meaning in parser.examples:
        yield f"# {meaning}"
        yield f"{PROGRAM} {parser.name} {arguments}".rstrip()
    yield f"```\n\nExit codes: {parser.exit_codes}."


def _usage(parser: CommandParser) -> str:
    # argparse breaks long usages in another way in each Python.
    if parser.usage:
        return parser.usage
    positional = [str(action.metavar) for action in parser._actions if not action.option_strings]
    return " ".join([parser.prog, "[OPTIONS]", *positional])


def _name(action: argparse.Action) -> str:
    flag = action.option_strings[-1] if action.option_strings else ""
    return f"{flag} {action.metavar or ''}".strip()


def _meaning(parser: CommandParser, action: argparse.Action) -> str:
    return ((action.help or "") % {**vars(action), "prog": parser.prog}).replace("|", "\\|")


# -- docs/configuration.md ------------------------------------------------------------------------------------------


def configuration() -> Tables:
    """Return the keys, from the schema."""
    names = " or ".join(f'"{name}"' for name in POLICY_NAMES)
    top = [
        ("policy", "see Policies", names, "what decides"),
        (WATCH, "false", WATCH_EXPECTED, "read the file again whenever it changes"),
    ]
    slot = [(CANDIDATE_STEPS, "required", CANDIDATE_STEPS_EXPECTED, "depths that the slot may choose")]
    ladder = str(list(DEFAULT_LADDER))
    throughput = [(CANDIDATE_STEPS, ladder, CANDIDATE_STEPS_EXPECTED, "depths that the policy may choose")]
    folder = [(PROFILE_DIR, "the user's cache", PROFILE_DIR_EXPECTED, "where round times are kept between starts")]
    budget = [(VERIFY_BUDGET.name, VERIFY_BUDGET.default, VERIFY_BUDGET.expected, VERIFY_BUDGET.meaning)]
    switches = [(switch.name, switch.default, switch.expected, switch.meaning) for switch in SWITCHES]
    file = (FILE, "required", FILE_EXPECTED, "where rounds are written; beside it, with `.1` at its end, older ones")
    trace = (TRACE, "nowhere", TRACE_EXPECTED, "write down the rounds that the server runs; see below")
    return {
        "top": _keys(top),
        "keys": _keys(slot + [_number(key) for key in TUNING_KEYS]),
        "throughput": _keys(throughput + [_number(key) for key in NUMBER_KEYS] + budget + folder),
        "server": _keys([*switches, _number(ZERO_STEP_EXTEND_EVERY), trace]),
        "trace": _keys([file, _number(MAX_MB)]),
    }


def _number(key: NumberKey) -> tuple[str, ...]:
    return key.name, f"{key.default:g}", key.expected, key.meaning


def _keys(rows: Sequence[tuple[str, ...]]) -> list[str]:
    return markdown([("Key", "Default", "Accepted", "Meaning"), *((f"`{name}`", *rest) for name, *rest in rows)])


# -- docs/architecture.md -------------------------------------------------------------------------------------------


def hooks() -> Tables:
    """Return the hooks, from the rooms of the plugin."""
    lines: list[str] = []
    for process in Process:
        lines.append(f"\n**{process.value}**\n")
        lines.append("| SGLang's function, below `sglang.srt` | | By | What it does there |\n|---|---|---|---|")
        for hook in registry.hooks(process):
            target = hook.target.removeprefix("sglang.srt.")
            lines.append(f"| `{target}` | {hook.kind} | `{hook.function}` | {_purpose(hook.function)} |")
    return {"hooks": lines}


def _purpose(where: str) -> str:
    """Return the first line of the function's docstring, less the words that repeat where it is put."""
    module, name = where.split(":")
    tree = ast.parse((ROOT / "sglang_adaptive" / "sglang_plugin" / f"{module.replace('.', '/')}.py").read_text())
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            line = (ast.get_docstring(node) or "").partition("\n")[0]
            start, colon, rest = line.partition(": ")
            told = rest if colon and start.startswith(("After", "Before", "Around", "Instead")) else line
            return told[:1].upper() + told[1:].replace("|", "\\|")
    for found in ast.walk(tree):  # a class that the module only takes over from the layer below
        if isinstance(found, ast.ImportFrom) and any(alias.name == name for alias in found.names):
            return (getattr(import_module(str(found.module)), name).__doc__ or "").partition("\n")[0]
    raise LookupError(where)


# -- docs/monitoring.md ---------------------------------------------------------------------------------------------


def metrics() -> Tables:
    """Return every metric, and how many series there can be."""
    rows = [("Metric", "Type", "Label", "", "Meaning")]
    for metric in METRICS:
        label = f"`{metric.label}`" if metric.label else ""
        rows.append((f"`{PREFIX}{metric.name}`", metric.kind, label, "T" * metric.throughput_only, metric.help))
    usual, most = most_series(len(DEFAULT_LADDER), DEFAULT_LADDER[-1]), most_series(MAX_STEPS + 1, MAX_STEPS)
    bounds = [
        f"A scheduler has {usual} series with the default candidate steps, and at most {most}. Their number does not",
        "grow with requests or time.",
    ]
    return {"metrics": markdown(rows), "series": bounds}
