"""Replacements inside SGLang's worker do what SGLang's own code does; see tests/worker_checks.py."""

from __future__ import annotations

import re

import pytest

from tests import checks
from tests.checks import ROOT, Findings

CHECKS = re.findall(r"^def ([a-z]\w+)\(\) -> None:", (ROOT / "tests/worker_checks.py").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def findings() -> Findings:
    return checks.finish(checks.start("tests.worker_checks"))


@pytest.mark.parametrize("check", [name for name in CHECKS if name != "main"])
def test_it_does_what_sglang_does(check: str, findings: Findings) -> None:
    assert findings[check] is None, findings[check]
