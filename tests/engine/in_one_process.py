"""Runs of `stepping`, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sglang_adaptive.cpu_engine.launcher import environment

ROOT = Path(__file__).parents[2]
SECONDS = 600


def ran(module: str, folder: Path) -> Any:
    """Return what `python -m tests.engine.MODULE FOLDER` wrote in its last line, as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.engine.{module}", str(folder)],
        cwd=ROOT,
        env={**os.environ, **environment()},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
