"""Runs of `stepping`, each in a process of its own, forked from one that has imported SGLang."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.launch_lab import LaunchLab


def ran(lab: LaunchLab, module: str, folder: Path, *more: str) -> Any:
    """Return what `python -m tests.engine.MODULE FOLDER MORE` wrote in its last line, as JSON."""
    outcome = lab.launch([f"tests.engine.{module}", str(folder), *more])
    if outcome.code:
        pytest.fail(outcome.output[-4000:])
    return json.loads(outcome.output.splitlines()[-1])
