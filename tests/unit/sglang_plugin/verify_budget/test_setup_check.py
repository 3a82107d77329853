"""Which settings request a verify budget, and what is refused before SGLang is inspected."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sglang_adaptive.policy.config import AdaptiveConfig, check_config
from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.sglang_plugin.verify_budget.setup_check import (
    CHOSEN,
    FORCE,
    ask,
    asked,
    forced_budget,
    require_asked,
    why_rectangles,
)


@pytest.mark.parametrize("value", ["", "0", "-1", "2.5", "two"])
def test_a_budget_is_a_whole_number_from_1_on(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCE, value)
    reason = next(why_rectangles(SimpleNamespace()))
    assert reason is not None and f"{value!r}" in reason


def config(verify_budget: bool, policy: str = "throughput") -> AdaptiveConfig:
    options = (
        {"throughput": {"verify_budget": verify_budget}} if policy == "throughput" else {"1": {"candidate_steps": [3]}}
    )
    return check_config({"policy": policy, **options}, "test")


def test_the_configuration_asks_for_the_schedulers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FORCE, raising=False)
    ask(config(False))
    assert not asked()
    ask(config(True))
    assert asked() and forced_budget() is None
    ask(config(False, "ema"))
    assert not asked(), "an earlier server of the process had asked"


def test_a_budget_forced_by_hand_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCE, "3")
    for wanted in (True, False):
        ask(config(wanted))
        assert asked() and forced_budget() == 3
    monkeypatch.setenv(FORCE, CHOSEN)
    assert forced_budget() is None


def test_a_later_configuration_may_not_ask_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FORCE, raising=False)
    require_asked(config(False))
    with pytest.raises(ConfigError, match=r"throughput\.verify_budget: was not asked for when the server started"):
        require_asked(config(True))
    monkeypatch.setenv(FORCE, CHOSEN)
    require_asked(config(True))
