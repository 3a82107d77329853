"""The plugin's hooks repair stock SGLang."""

from __future__ import annotations

import pytest

from tests import checks
from tests.checks import Findings
from tests.repair_checks import PATCHED

MODULES = (*PATCHED, "repair_checks/rings")


@pytest.fixture(scope="module")
def findings() -> Findings:
    found: Findings = checks.findings("tests.checks", "repair_checks/hooked", *MODULES, TRITON_INTERPRET="1")
    return found


@pytest.mark.parametrize("check", [check for module in MODULES for check in checks.named_in(module)])
def test_the_hooks_repair(check: str, findings: Findings) -> None:
    assert findings[check] is None, findings[check]
