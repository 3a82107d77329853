"""Runs SGLang's real command line many times, paying for its imports once.

A lab is a fork of a process of `forked_servers`. For every JSON line that it is sent it forks a child that becomes that
launch: same argv, same entry point, its own exit code and output. Only what ends by itself belongs here: refusals, and
modules of tests that need a process of their own in which SGLang is imported.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import runpy
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from tests.forked_servers import connected_lab

SECONDS_ALLOWED = 300
"""Less than a test may take, so that no test reads the answer to another one's question."""

OURS = "sglang-adaptive: error: "
"""How the package's own refusals begin."""

NO_MODEL = "no/such/model"
"""Neither a folder nor a name that a hub could have, so that looking for it needs no network."""


@dataclass(frozen=True)
class Outcome:
    """How a launch ended."""

    code: int
    output: str
    """Standard output and error together."""


class LaunchLab:
    """Client of the lab process, which ends with this one. It runs on the CPU engine, with *variables* as well."""

    def __init__(self, **variables: str) -> None:
        self._lines = connected_lab(**variables)

    def launch(self, argv: Sequence[str], before: str = "") -> Outcome:
        """Run ``python -m MODULE ARGS``, or a console script named MODULE:FUNCTION.

        *argv* is [MODULE, *ARGS]; *before* is Python run in the child first. The child is ended after SECONDS_ALLOWED.
        """
        self._lines.write(json.dumps({"argv": list(argv), "before": before}) + "\n")
        self._lines.flush()
        answer = self._lines.readline()
        assert answer, "the lab process ended"
        return Outcome(**json.loads(answer))


shared = functools.cache(LaunchLab)
"""From variables to the lab of this process that has them."""


def serve(lines: IO[str]) -> None:
    """Run the launch of every line, and answer with how it ended, until the client ends."""
    for line in lines:
        request = json.loads(line)
        with tempfile.TemporaryFile() as output:
            child = os.fork()
            if child == 0:
                _become(**request, output=output.fileno())
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            output.seek(0)
            lines.write(json.dumps({"code": code, "output": output.read().decode(errors="replace")}) + "\n")
            lines.flush()


def _become(argv: list[str], before: str, output: int) -> None:
    import signal
    import traceback

    signal.alarm(SECONDS_ALLOWED)  # a launch that was not refused must not hang the tests
    code = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        exec(before, {})
        sys.argv = argv
        module, _, function = argv[0].partition(":")
        if function:
            getattr(importlib.import_module(module), function)()
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
