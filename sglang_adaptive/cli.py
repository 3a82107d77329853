"""The ``sglang-adaptive`` command: finds the subcommand and passes it the other arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

from sglang_adaptive import __version__
from sglang_adaptive.command_line import BAD_INPUT, DONE, INTERRUPTED, PROGRAM, Interrupted

COMMANDS = {
    "demo": ("sglang_adaptive.lab.demo.command", "start a real server without a GPU; watch the depth follow the text"),
    "serve-cpu": ("sglang_adaptive.serve_cpu", "serve a model on the CPU; takes SGLang's own arguments"),
    "chat": ("sglang_adaptive.lab.chat", "chat with a real model in the terminal and see its draft depth"),
    "models": ("sglang_adaptive.lab.models.command", "put a real language model and its draft into your cache"),
    "validate": ("sglang_adaptive.validate", "check a configuration and describe it in plain words"),
    "doctor": ("sglang_adaptive.doctor", "check this machine, a launch line or a server, and give a verdict"),
    "watch": ("sglang_adaptive.watch", "show a server's speculation live"),
    "explain": ("sglang_adaptive.explain", "explain why a live server runs its current depth"),
    "calibrate": ("sglang_adaptive.calibrate", "measure a live server's round times and write a cost profile"),
    "audit": ("sglang_adaptive.audit.command", "check that speculation changes no token on a live server"),
    "simulate": ("sglang_adaptive.lab.simulate.command", "run policies against an oracle on a measured cost profile"),
}
"""By subcommand: the module with its ``parser()`` and ``main(argv)``, imported only when needed, and a summary."""
READER_GONE = 141
"""128 + SIGPIPE: what a shell reports for a command whose reader closed the pipe."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit code: 0 done, 1 it found a problem, 2 bad usage, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()  # here and not at exit, to notice a closed pipe
    except (KeyboardInterrupt, Interrupted) as stop:
        print("interrupted", file=sys.stderr)
        return stop.exit_code if isinstance(stop, Interrupted) else INTERRUPTED
    except BrokenPipeError:
        # As in `sglang-adaptive ... | head -1`. Python must not write the buffered rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(help_text())
        return DONE if arguments else BAD_INPUT
    if arguments[0] == "--version":
        print(f"{PROGRAM} {__version__}")
        return DONE
    name, *rest = arguments
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; expected one of {', '.join(COMMANDS)}"
        print(f"{PROGRAM}: error: no command {name!r}{hint}", file=sys.stderr)
        return BAD_INPUT
    code: int = import_module(COMMANDS[name][0]).main(rest)
    return code


def help_text() -> str:
    """Return what ``sglang-adaptive --help`` prints."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {what}" for name, (_, what) in COMMANDS.items())
    return f"""usage: sglang-adaptive COMMAND [ARGS...]

Adaptive speculative decoding for SGLang. To serve with it, add one flag to your own launch line:
  python -m sglang.launch_server ... --speculative-adaptive-config throughput

commands:
{commands}

options:
  {"--help":<{width}}  print this and exit
  {"--version":<{width}}  print the version and exit

examples:
  # what a command is for, with examples
  sglang-adaptive validate --help
  # which version is this
  sglang-adaptive --version

exit codes: 0 done; 1 the command found a problem; 2 bad usage or input; 130 interrupted"""


if __name__ == "__main__":
    raise SystemExit(main())
