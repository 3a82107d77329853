"""A module of the benchmarks as an SGLang plugin: found on PYTHONPATH, like an installed distribution."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


PLUGINS = "SGLANG_PLUGINS"
"""SGLang's variable: the only plugins that a server loads."""


def environment(folder: Path, name: str, module: str) -> dict[str, str]:
    """Write the metadata of plugin *name*, ``register`` of *module*; return the variables that load it."""
    info = folder / f"{name}-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {module}:register\n")
    return {PLUGINS: name, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def in_scheduler() -> bool:
    """Return whether this is a scheduler process: only there is its entry function loaded this early."""
    return multiprocessing.parent_process() is not None and "sglang.srt.managers.scheduler" in sys.modules


def merged_environment(*parts: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment updated with *parts*; later ones take precedence.

    Every PYTHONPATH and every plugin of *parts* is kept; without plugins none is loaded.
    """
    paths = [path for part in (*parts, os.environ) for path in part.get("PYTHONPATH", "").split(os.pathsep) if path]
    plugins = ",".join(part[PLUGINS] for part in parts if PLUGINS in part) or "none"
    merged = {key: value for part in parts for key, value in part.items()}
    return {**os.environ, **merged, PLUGINS: plugins, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
