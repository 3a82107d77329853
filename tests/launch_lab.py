"""Runs SGLang's real command line many times but imports SGLang only once.

A lab is a fork of a process of `forked_servers`. For every JSON line it receives, it forks a child that becomes that
launch: same argv, same entry point, its own exit code and output. Use it only for launches that end by themselves:
refusals, and test modules that need their own process with SGLang imported.
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
"""Less than a test's time limit, so that no test reads the answer to another test's request."""

OURS = "sglang-adaptive: error: "
"""Prefix of the package's own refusals."""

NO_MODEL = "no/such/model"
"""Neither a folder nor a possible hub name, so the lookup needs no network."""


@dataclass(frozen=True)
class Outcome:
    """How a launch ended."""

    code: int
    output: str
    """Standard output and error together."""


class LaunchLab:
    """Client of the lab process, which ends with this one and runs the CPU engine, with *variables* added."""

    def __init__(self, **variables: str) -> None:
        self._lines = connected_lab(**variables)

    def launch(self, argv: Sequence[str], before: str = "") -> Outcome:
        """Run ``python -m MODULE ARGS``, or a console script named MODULE:FUNCTION.

        *argv* is [MODULE, *ARGS]; the child runs the Python code *before* first. It is ended after SECONDS_ALLOWED.
        """
        self._lines.write(json.dumps({"argv": list(argv), "before": before}) + "\n")
        self._lines.flush()
        answer = self._lines.readline()
        assert answer, "the lab process ended"
        return Outcome(**json.loads(answer))


shared = functools.cache(LaunchLab)
"""Return this process's lab with these variables."""


def serve(lines: IO[str]) -> None:
    """Run the launch of every line and report how it ended, until the client ends."""
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
