"""Where a report comes from: enough to run it again, and nothing that names a place on this machine."""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
import subprocess
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any

import sglang_adaptive
from sglang_adaptive.simulate.setting import Setting


def provenance(argv: list[str], profile: str, setting: Setting) -> dict[str, Any]:
    """Return command, code, machine and inputs as JSON builtins; *profile* names the cost profile."""
    return {
        "command": " ".join(["sglang-adaptive", "simulate", *(_without_folder(word) for word in argv)]),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": _commit(),
        "versions": {
            "sglang-adaptive": sglang_adaptive.__version__,
            "sglang": _version("sglang"),
            "numpy": _version("numpy"),
            "python": platform.python_version(),
        },
        "cpu": _cpu(),
        "seed": setting.seed,
        "traces": setting.traces,
        "rounds": setting.rounds,
        "profile": profile,
        "profile_sha256": _digest(setting),
        "note": "Acceptance, arrivals and clock noise are simulated; round times come from the profile.",
    }


def _without_folder(word: str) -> str:
    return PurePath(word).name if PurePath(word).is_absolute() else word


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of the checkout that the package runs from, marked when its code has been changed."""
    package = Path(__file__).resolve().parents[1]
    try:
        head = _git(package, "rev-parse", "HEAD")
        return head + ("-dirty" if _git(package, "status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _digest(setting: Setting) -> str:
    """Return a digest of the cost cells, whatever file format they came in."""
    cells = [[batch, steps, round(value, 9)] for (batch, steps), value in sorted(setting.cost.cells().items())]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]
