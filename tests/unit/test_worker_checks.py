"""Replacements inside SGLang's worker do what SGLang's own code does; see tests/worker_checks.py."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_adaptive.cpu_engine.launcher import environment

ROOT = Path(__file__).parents[2]
CHECKS = re.findall(r"^def ([a-z]\w+)\(\) -> None:", (ROOT / "tests/worker_checks.py").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def findings() -> dict[str, str | None]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.worker_checks"],
        cwd=ROOT,
        env={**os.environ, **environment()},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("check", [name for name in CHECKS if name != "main"])
def test_it_does_what_sglang_does(check: str, findings: dict[str, str | None]) -> None:
    assert findings[check] is None, findings[check]
