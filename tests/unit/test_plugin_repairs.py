"""The plugin's hooks repair what the patches repair: the same checks, on stock SGLang with the hooks applied."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_adaptive.cpu_engine.launcher import environment
from tests.plugin_repairs import CHECKS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def findings() -> dict[str, str | None]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.plugin_repairs"],
        cwd=ROOT,
        env={**os.environ, **environment(), "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_the_hooks_repair(check: str, findings: dict[str, str | None]) -> None:
    assert findings[check] is None, findings[check]
