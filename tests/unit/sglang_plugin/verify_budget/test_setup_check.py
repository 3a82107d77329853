"""What a verify budget refuses before it looks at SGLang."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sglang_adaptive.sglang_plugin.verify_budget.setup_check import FORCE, why_rectangles


@pytest.mark.parametrize("value", ["", "0", "-1", "2.5", "two"])
def test_a_budget_is_a_whole_number_from_1_on(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCE, value)
    reason = why_rectangles(SimpleNamespace())
    assert reason is not None and f"{value!r}" in reason
