"""Replacements inside SGLang's worker do what SGLang's own code does; see tests/worker_checks.py."""

from __future__ import annotations

import pytest

from tests import checks
from tests.checks import Findings

CHECKS = checks.named_in("worker_checks")


@pytest.fixture(scope="module")
def findings() -> Findings:
    return checks.finish(checks.start("tests.worker_checks"))


@pytest.mark.parametrize("check", CHECKS)
def test_it_does_what_sglang_does(check: str, findings: Findings) -> None:
    assert findings[check] is None, findings[check]
