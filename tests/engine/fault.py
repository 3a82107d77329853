"""Plugins for SGLang that disturb the package in a running server: a policy that fails, a rank whose clock lies."""

from __future__ import annotations

from pathlib import Path

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
def register():
    from sglang_adaptive.runtime.controller import AdaptiveController
    from sglang_adaptive.runtime.round_times import RoundClock

    read, activate = RoundClock.read, AdaptiveController.activate_step_by_batch

    def rank():
        from sglang.srt.runtime_context import get_parallel

        return get_parallel().tp_rank

    def lying(clock, steps, *round_shape):
        seconds = read(clock, steps, *round_shape)
        # Rank 1 sees deep rounds as cheap: on its own clock it would decide otherwise.
        return seconds if seconds is None or rank() == 0 else seconds / (1 + {lie} * steps)

    def logged(controller, batch_size):
        activate(controller, batch_size)
        with open({log!r} + str(rank()), "a") as log:
            log.write(f"{{batch_size}} {{controller.worker.speculative_num_steps}}\\n")

    RoundClock.read, AdaptiveController.activate_step_by_batch = lying, logged
"""


def write_fault_plugin(folder: Path, after_rounds: int, steps: int) -> Path:
    """Write a plugin whose policy raises at a round drafted at *steps*, once *after_rounds* are over.

    Returns the folder for PYTHONPATH.
    """
    return _write(folder, _MODULE.format(after_rounds=after_rounds, steps=steps, message=MESSAGE))


def write_liar_plugin(folder: Path, log: str, lie: int = 3) -> Path:
    """Write a plugin under which rank 1's clock lies, 0 for not at all, and each rank logs its depths to *log* + its
    number.
    """
    return _write(folder, _LIAR.format(log=log, lie=lie))


def _write(folder: Path, module: str) -> Path:
    """Write *module* as an installed distribution with a plugin entry point."""
    info = folder / "adaptive_fault-1.dist-info"
    info.mkdir(parents=True)
    (folder / "adaptive_fault.py").write_text(module)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: adaptive-fault\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nadaptive_fault = adaptive_fault:register\n")
    return folder
