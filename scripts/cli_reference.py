"""Writes the commands into docs/cli.md from their parsers; ``--check`` only says whether the page is current."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module

from generated import DOCS, update

from sglang_adaptive.cli import COMMANDS
from sglang_adaptive.command_line import PROGRAM, CommandParser


def _commands() -> Iterator[str]:
    yield "| Command | What it does |\n| --- | --- |"
    yield from (f"| [`{name}`](#{name}) | {what} |" for name, (_, what) in COMMANDS.items())
    for module, _ in COMMANDS.values():
        yield from _command(import_module(module).parser())


def _command(parser: CommandParser) -> Iterator[str]:
    yield f"\n## {parser.name}\n"
    for paragraph in parser.purpose.split("\n\n"):
        wrapped = textwrap.fill(paragraph, 120, break_on_hyphens=False)
        yield f"```\n{paragraph}\n```\n" if paragraph.startswith("  ") else f"{wrapped}\n"
    yield f"```\n{_usage(parser)}\n```\n"
    actions = [action for action in parser._actions if "--help" not in action.option_strings]
    yield "| Argument | Meaning |\n| --- | --- |"
    yield from (f"| `{_name(action)}` | {_meaning(parser, action)} |" for action in actions)
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


if __name__ == "__main__":
    sys.exit(update(DOCS / "cli.md", {"commands": _commands()}))
