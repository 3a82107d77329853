"""Plugins for SGLang that disturb the package in a running server: a policy that fails, a rank with a wrong clock."""

from __future__ import annotations

import os
from pathlib import Path

from sglang_adaptive.serve_cpu import environment

ROOT = Path(__file__).parents[2]
MESSAGE = "injected by a test"

_MODULE = """
import itertools

def register():
    from sglang_adaptive.policy.ema import AdaptiveSpeculativeParams

    observe, seen = AdaptiveSpeculativeParams.observe, itertools.count(1)

    def failing(policy, observation):
        if next(seen) > {after_rounds} and observation.steps == {steps}:
            raise RuntimeError({message!r})
        return observe(policy, observation)

    AdaptiveSpeculativeParams.observe = failing
"""

_LIAR = """
import os
import sys

def register():
    def opened(event, arguments):
        if event == "open" and str(arguments[0]) == {file!r}:
            os.write(reads, f"{{os.getpid()}}\\n".encode())

    reads = os.open({reads!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.addaudithook(opened)

    from sglang_adaptive.runtime.controller import AdaptiveController
    from sglang_adaptive.runtime.round_times import RoundClock

    read, activate = RoundClock.read, AdaptiveController.choose

    def rank():
        from sglang.srt.runtime_context import get_parallel

        return get_parallel().tp_rank

    def lying(clock, steps, *round_shape):
        seconds = read(clock, steps, *round_shape)
        # Rank 1 sees deep rounds as cheap: on its own clock it would decide otherwise.
        return seconds if seconds is None or rank() == 0 else seconds / (1 + 3 * steps)

    def logged(controller, batch_size):
        activate(controller, batch_size)
        with open({log!r} + str(rank()), "a") as log:
            log.write(f"{{batch_size}} {{controller.states.live.steps}}\\n")

    RoundClock.read, AdaptiveController.choose = lying, logged
"""


def failing_policy(folder: Path, after_rounds: int, steps: int) -> dict[str, str]:
    """Write a plugin whose policy raises at a round drafted at *steps* after *after_rounds* rounds."""
    source = _MODULE.format(after_rounds=after_rounds, steps=steps, message=MESSAGE)
    return write_plugin(folder, "adaptive_fault:register", source)


def lying_clock(folder: Path, log: str, file: Path) -> dict[str, str]:
    """Write a plugin that falsifies rank 1's clock and logs each rank's depths to *log* + its number.

    It also logs the process of each read of *file*, a configuration, next to it.
    """
    source = _LIAR.format(log=log, file=str(file), reads=str(reads_of(file)))
    return write_plugin(folder, "adaptive_fault:register", source)


def reads_of(file: Path) -> Path:
    return file.with_suffix(".reads")


def write_plugin(folder: Path, entry: str, source: str = "") -> dict[str, str]:
    """Write a distribution with *entry*, MODULE:FUNCTION, as SGLang entry point; *source* is the module if it is new.

    Returns the environment variables for a server that loads it.
    """
    info = folder / "planted-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\nplanted = {entry}\n")
    if source:
        (folder / f"{entry.partition(':')[0]}.py").write_text(source)
    return {"PYTHONPATH": os.pathsep.join([environment()["PYTHONPATH"], str(ROOT), str(folder)])}
