"""KV slots reserved for several rounds at once are accounted for as SGLang's are; see tests/reserve_checks.py."""

from __future__ import annotations

import pytest

from tests import checks
from tests.checks import Findings

CHECKS = checks.named_in("reserve_checks")


@pytest.fixture(scope="module")
def findings() -> Findings:
    return checks.finish(checks.start("tests.reserve_checks"))


@pytest.mark.parametrize("check", CHECKS)
def test_slots(check: str, findings: Findings) -> None:
    assert findings[check] is None, findings[check]
