"""Attention DP adapts unless it is turned off, and what cannot work is refused by name. With SGLang's own check."""

from __future__ import annotations

import os

import pytest

from tests import checks

CHECKS = checks.named_in("attention_dp_checks")


@pytest.fixture(scope="module")
def findings() -> checks.Findings:
    os.environ.pop("SGLANG_ADAPTIVE_ATTENTION_DP", None)
    found: checks.Findings = checks.findings("tests.attention_dp_checks")
    return found


@pytest.mark.parametrize("check", CHECKS)
def test_it_holds(check: str, findings: checks.Findings) -> None:
    assert findings[check] is None, findings[check]
