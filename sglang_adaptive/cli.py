"""The ``sglang-adaptive`` command: finds the subcommand and hands it the rest of the line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

from sglang_adaptive import __version__

COMMANDS = {
    "demo": ("sglang_adaptive.demo.command", "boot a real server without a GPU and watch the depth follow the text"),
    "serve-cpu": ("sglang_adaptive.cpu_engine.launcher", "serve a model on the CPU; takes SGLang's own arguments"),
    "simulate": ("sglang_adaptive.simulate.command", "run policies against an oracle on a measured cost profile"),
    "calibrate": ("sglang_adaptive.calibrate.command", "measure round times of a live server into a cost profile"),
    "explain": ("sglang_adaptive.calibrate.explain", "say in words why a live server runs the depth that it runs"),
}
"""Subcommand: the module whose ``main(argv)`` runs it, imported only then, and what it does."""

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit code: 0 done, 1 it failed, 2 bad usage, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"sglang-adaptive {__version__}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; expected one of {', '.join(COMMANDS)}"
        print(f"sglang-adaptive: error: no command {name!r}{hint}", file=sys.stderr)
        return 2
    try:
        code: int = import_module(COMMANDS[name][0]).main(rest)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return code


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: sglang-adaptive COMMAND [ARGS...]",
            "",
            "Adaptive speculative decoding for SGLang. To serve with it, add one flag to your own launch line:",
            "  python -m sglang.launch_server ... --speculative-adaptive-config FILE",
            "",
            "commands:",
            *lines,
            "",
            "sglang-adaptive COMMAND --help says more.",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
