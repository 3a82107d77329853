"""The examples of the commands' help, split into words."""

from __future__ import annotations

import shlex
import sys
from importlib import import_module

from sglang_adaptive.cli import COMMANDS
from sglang_adaptive.command_line import DEFAULT_URL

PROGRAM = [sys.executable, "-m", "sglang_adaptive.cli"]
BRIEFLY = [
    *(sys.executable, "-c"),
    "from sglang_adaptive import adaptive_server as a, cli; a.HOLD_SECONDS = 4.0; raise SystemExit(cli.main())",
]
"""The same, with a hold of a depth that ends soon after a kill."""
QUICK = {
    "calibrate": ["--rounds", "2", "--tokens", "64", "--batch-sizes", "1"],
    "audit": ["--passes", "1", "--minutes", "20", "--tokens", "8"],
}
"""Options put before an example's own so that it takes seconds."""


def examples(*commands: str, server: bool) -> list[list[str]]:
    """Return the words of the examples of *commands* that name a server, or of those that do not."""
    every = [
        [name, *QUICK.get(name, []), *shlex.split(arguments)]
        for name in commands
        for arguments, _ in import_module(COMMANDS[name][0]).parser().examples
    ]
    return [words for words in every if (DEFAULT_URL in words) is server]
