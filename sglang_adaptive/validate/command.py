"""``sglang-adaptive validate``: parses, checks as a server does, and prints the configuration in words."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from sglang_adaptive.command_line import BAD_INPUT, DONE, PROGRAM, CommandParser
from sglang_adaptive.policy.config import load_config
from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.validate.facts import facts
from sglang_adaptive.validate.words import words


def parser() -> CommandParser:
    """Return the parser of the command."""
    found = CommandParser(
        "validate",
        "Checks a configuration file with the code that a server checks it with, and with its one line of complaint. "
        "A good one is read back in plain words: which depths run at which batch sizes, when the depth rises and "
        "falls, and what differs from the defaults. Needs neither SGLang nor a GPU, and takes no time.",
        [
            ("configs/conservative.json", "what will this do?"),
            ("configs/aggressive.json --json", "the same for a script"),
        ],
        "0 the file is good; 2 it is not, or bad usage",
    )
    found.add_argument("file", metavar="FILE", help="the file for --speculative-adaptive-config")
    found.add_argument("--json", action="store_true", help="print the reading, or the complaint, as one JSON object")
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command; returns 0, or 2 when a server would refuse the file."""
    arguments = parser().parse_args(argv)
    try:
        found = facts(load_config(arguments.file))
    except ConfigError as error:
        # Word for word what a server prints before it stops.
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        if arguments.json:
            print(json.dumps(_complaint(error), indent=1))
        return BAD_INPUT
    lines = list(words(found))
    if arguments.json:
        print(json.dumps({"valid": True, "file": arguments.file, **found, "words": lines}, indent=1))
    else:
        print("\n".join([f"{arguments.file}: valid", "", *lines]))
    return DONE


def _complaint(error: ConfigError) -> dict[str, Any]:
    return {
        "valid": False,
        "file": error.file,
        "key": error.key,
        "problem": error.problem,
        "expected": error.expected,
        "error": str(error),
    }
