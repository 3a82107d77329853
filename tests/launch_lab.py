"""Runs SGLang's real command line many times, paying for its imports once.

Started as ``python -m tests.launch_lab``, it imports what a launch imports and then, for every JSON line on standard
input, forks a child that becomes that launch: same argv, same entry point, its own exit code and output. Only what ends
by itself belongs here: refusals, and modules of tests that need a process of their own in which SGLang is imported.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_adaptive.lab.cpu_engine import start
from sglang_adaptive.serve_cpu import environment

ROOT = Path(__file__).parents[1]
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
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.launch_lab"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # A name that is no folder is not looked for on a hub, which takes a minute.
            env={**os.environ, **environment(), "HF_HUB_OFFLINE": "1", **variables},
        )

    def launch(self, argv: Sequence[str], before: str = "") -> Outcome:
        """Run ``python -m MODULE ARGS``, or a console script named MODULE:FUNCTION.

        *argv* is [MODULE, *ARGS]; *before* is Python run in the child first. The child is ended after SECONDS_ALLOWED.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"argv": list(argv), "before": before}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the lab process ended"
        return Outcome(**json.loads(answer))


shared = functools.cache(LaunchLab)
"""From variables to the lab of this process that has them."""


def _serve() -> None:
    for name in start.MODULES:
        importlib.import_module(name)
    gc.freeze()  # a child's collections would go through all that was imported: a second each time
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryFile() as output:
            child = os.fork()
            if child == 0:
                _become(**request, output=output.fileno())
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            output.seek(0)
            print(json.dumps({"code": code, "output": output.read().decode(errors="replace")}), flush=True)


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


if __name__ == "__main__":
    _serve()
    os._exit(0)  # taking SGLang's modules down in order costs seconds
