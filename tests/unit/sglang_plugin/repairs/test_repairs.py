"""The plugin's hooks repair stock SGLang."""

from __future__ import annotations

import pytest

from tests import checks
from tests.checks import Findings
from tests.repair_checks import PATCHED

MODULES = (*PATCHED, "rings")


@pytest.fixture(scope="module")
def findings() -> Findings:
    found: Findings = checks.findings("tests.repair_checks.__main__", "hooked", *MODULES, TRITON_INTERPRET="1")
    return found


@pytest.mark.parametrize("check", [check for module in MODULES for check in checks.named_in(f"repair_checks/{module}")])
def test_the_hooks_repair(check: str, findings: Findings) -> None:
    assert findings[check] is None, findings[check]
