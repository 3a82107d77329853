"""``sglang-adaptive completion``: print the script that teaches a shell the commands and their options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module

from sglang_adaptive.command_line import DONE, PROGRAM, CommandParser

SHELLS = ("bash", "zsh", "fish")
_FILES = {"FILE", "F", "PATH", "RESULT"}
"""Placeholders of arguments that are files."""


def parser() -> CommandParser:
    """Return the parser of the command."""
    found = CommandParser(
        "completion",
        "Prints a script that lets a shell complete commands, options and file names on TAB. It is fixed text: "
        "nothing from this package runs while you type. Where it goes:\n\n"
        '  bash   eval "$(sglang-adaptive completion bash)" in ~/.bashrc\n'
        "  zsh    sglang-adaptive completion zsh > a file _sglang-adaptive in a folder of $fpath\n"
        "  fish   sglang-adaptive completion fish > ~/.config/fish/completions/sglang-adaptive.fish",
        [("bash", "the script for bash"), ("zsh", "for zsh"), ("fish", "for fish")],
        "0 done; 2 bad usage",
    )
    found.add_argument("shell", choices=SHELLS, metavar="SHELL", help=" or ".join(SHELLS))
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command; returns 0."""
    arguments = parser().parse_args(argv)
    import shtab

    print(shtab.complete(whole_parser(), shell=arguments.shell))
    return DONE


def whole_parser() -> argparse.ArgumentParser:
    """Return one parser of the whole program, with a subparser for each command and file arguments marked."""
    import shtab

    from sglang_adaptive.cli import COMMANDS

    root = argparse.ArgumentParser(prog=PROGRAM)
    root.add_argument("--version", action="store_true", help="print the version and exit")
    commands = root.add_subparsers()
    for name, (module, what) in COMMANDS.items():
        # The command's own parser has the same -h as the new one.
        parent: argparse.ArgumentParser = import_module(module).parser()
        found = commands.add_parser(name, help=what, parents=[parent], conflict_handler="resolve")
        for action in found._actions:
            if action.metavar in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif action.metavar == "DIR":
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return root
