"""The commands as programs: the examples of their help, what they show on a terminal, and how they end."""

from __future__ import annotations

import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

from sglang_adaptive.cli import COMMANDS
from sglang_adaptive.command_line import DEFAULT_URL
from sglang_adaptive.lab.cpu_engine.server import CpuServer
from tests.engine.workload import DEADLINE, adaptive, require_whole_pool, rounds, wait_until

PROGRAM = [sys.executable, "-m", "sglang_adaptive.cli"]
BRIEFLY = [
    *(sys.executable, "-c"),
    "from sglang_adaptive import client as a, cli; a.HOLD_SECONDS = 4.0; raise SystemExit(cli.main())",
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


@contextmanager
def on_terminal(words: Sequence[str], **variables: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a command on a pseudo-terminal; yield it and the terminal."""
    terminal, inside = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", **variables}
    environment.pop("NO_COLOR", None)
    running = subprocess.Popen(
        [*PROGRAM, *words], stdin=inside, stdout=inside, stderr=inside, env=environment, start_new_session=True
    )
    os.close(inside)
    try:
        yield running, terminal
    finally:
        running.kill()
        running.wait()
        os.close(terminal)


def until(terminal: int, enough: Callable[[str], bool]) -> str:
    """Read a pseudo-terminal until the output is *enough*, or its other side is closed."""
    text, end = "", time.monotonic() + DEADLINE
    while not enough(text):
        assert time.monotonic() < end, text[-2000:]
        if select.select([terminal], [], [], 1.0)[0]:
            try:
                text += os.read(terminal, 65536).decode(errors="replace")
            except OSError:  # closed
                break
    return text


def require_depth_back(server: CpuServer, words: list[str], held: Sequence[int], by: signal.Signals) -> None:
    """Fail unless the command holds one of *held*, and the policy chooses again after a signal ends the command."""
    program = BRIEFLY if by == signal.SIGKILL else PROGRAM
    ignored = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and a child would, too
    running = subprocess.Popen(
        [*program, *words, "--url", server.url], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    signal.signal(signal.SIGHUP, ignored)
    wait_until(lambda: adaptive(server)["forced_steps"] in held, "it holds a depth")
    begun = rounds(server)
    wait_until(lambda: rounds(server) > begun, "its load runs")
    running.send_signal(by)
    told = running.communicate(timeout=DEADLINE)[1]
    if by != signal.SIGKILL:  # of itself; after SIGKILL the server ends the unrenewed hold
        assert (running.returncode, told) == (128 + by, "interrupted\n")
        assert adaptive(server)["forced_steps"] is None
    wait_until(lambda: adaptive(server)["forced_steps"] is None, "the server has its depth back")
    require_whole_pool(server)
