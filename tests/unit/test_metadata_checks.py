"""What fa3 is told of lengths and page tables is what SGLang tells it; see tests/metadata_checks.py."""

from __future__ import annotations

import pytest

from tests import checks
from tests.checks import Findings

CHECKS = checks.named_in("metadata_checks")


@pytest.fixture(scope="module")
def findings() -> Findings:
    """Both sides' kernels, run by Triton's interpreter."""
    return checks.finish(checks.start("tests.metadata_checks", TRITON_INTERPRET="1"))


@pytest.mark.parametrize("check", CHECKS)
def test_it_tells_what_sglang_tells(check: str, findings: Findings) -> None:
    assert findings[check] is None, findings[check]
