"""A greedy choice without drafts is what SGLang's verification of one node says; see tests/choice_checks.py."""

from __future__ import annotations

import pytest

from tests import checks
from tests.checks import Findings

CHECKS = checks.named_in("choice_checks")


@pytest.fixture(scope="module")
def findings() -> Findings:
    """Our kernels run by Triton's interpreter."""
    return checks.finish(checks.start("tests.choice_checks", TRITON_INTERPRET="1"))


@pytest.mark.parametrize("check", CHECKS)
def test_it_chooses_what_sglang_chooses(check: str, findings: Findings) -> None:
    assert findings[check] is None, findings[check]
