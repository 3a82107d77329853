"""A module of the benchmarks as a plugin of SGLang: found on PYTHONPATH, as an installed distribution would be."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def written(folder: Path, name: str, module: str) -> str:
    """Write the metadata of plugin *name*, which is ``register`` of *module*, and return the PYTHONPATH it needs."""
    info = folder / f"{name}-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {module}:register\n")
    return os.pathsep.join([str(folder), str(ROOT)])


def in_scheduler() -> bool:
    """Return whether this is a scheduler's process: only there is its entry function loaded this early."""
    return multiprocessing.parent_process() is not None and "sglang.srt.managers.scheduler" in sys.modules


def merged_environment(*parts: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment under *parts*, later ones first; every PYTHONPATH of theirs is kept."""
    paths = [path for part in (*parts, os.environ) for path in part.get("PYTHONPATH", "").split(os.pathsep) if path]
    merged = {key: value for part in parts for key, value in part.items()}
    return {**os.environ, **merged, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
