"""The plugin's hooks repair what the patches repair: the same checks, on stock SGLang with the hooks applied."""

from __future__ import annotations

import pytest

from tests import checks
from tests.checks import Findings
from tests.plugin_repairs import CHECKS


@pytest.fixture(scope="module")
def findings() -> Findings:
    found: Findings = checks.findings("tests.plugin_repairs", TRITON_INTERPRET="1")
    return found


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_the_hooks_repair(check: str, findings: Findings) -> None:
    assert findings[check] is None, findings[check]
