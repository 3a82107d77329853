"""A plugin for SGLang that makes the package's policy fail in a running server."""

from __future__ import annotations

from pathlib import Path

MESSAGE = "injected by a test"

_MODULE = """
import itertools

def register():
    from sglang_adaptive.policy.ema import AdaptiveSpeculativeParams

    observe, seen = AdaptiveSpeculativeParams.observe, itertools.count(1)

    def failing(policy, observation):
        if next(seen) > {after_rounds}:
            raise RuntimeError({message!r})
        return observe(policy, observation)

    AdaptiveSpeculativeParams.observe = failing
"""


def write_fault_plugin(folder: Path, after_rounds: int) -> Path:
    """Write the plugin as an installed distribution; returns the folder for PYTHONPATH."""
    info = folder / "adaptive_fault-1.dist-info"
    info.mkdir(parents=True)
    (folder / "adaptive_fault.py").write_text(_MODULE.format(after_rounds=after_rounds, message=MESSAGE))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: adaptive-fault\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nadaptive_fault = adaptive_fault:register\n")
    return folder
