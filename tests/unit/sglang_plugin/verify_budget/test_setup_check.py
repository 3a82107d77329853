"""Who asks for a verify budget, and what is refused before SGLang is looked at."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sglang_adaptive.sglang_plugin.verify_budget.setup_check import (
    CHOSEN,
    FORCE,
    ask,
    asked,
    forced_budget,
    why_rectangles,
)


@pytest.mark.parametrize("value", ["", "0", "-1", "2.5", "two"])
def test_a_budget_is_a_whole_number_from_1_on(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCE, value)
    reason = why_rectangles(SimpleNamespace())
    assert reason is not None and f"{value!r}" in reason


def test_the_configuration_asks_for_the_schedulers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FORCE, raising=False)
    ask(False)
    assert not asked()
    ask(True)
    assert asked() and forced_budget() is None
    ask(False)
    assert not asked(), "an earlier server of the process had asked"


def test_a_budget_forced_by_hand_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCE, "3")
    for wanted in (True, False):
        ask(wanted)
        assert asked() and forced_budget() == 3
    monkeypatch.setenv(FORCE, CHOSEN)
    assert forced_budget() is None
