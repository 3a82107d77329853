"""Collecting switches from a server that only remembers the latest."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_adaptive.lab.demo.measure import READ_SECONDS, SwitchLog
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.counters import RECENT_SWITCHES
from tests.fakes import ScriptedPolicy, Worker


@pytest.fixture
def controller() -> AdaptiveController:
    """Return a real controller, which keeps the record that the log reads."""
    built = AdaptiveController(Worker(1), ScriptedPolicy([1, 3], 1), wall_time=iter(range(10**6)).__next__)  # type: ignore[arg-type]
    built.build_states()
    return built


def rounds(controller: AdaptiveController, count: int) -> dict[str, Any]:
    """Run rounds whose policy changes the depth each time."""
    for _ in range(count):
        controller.policy.answer = 4 - controller.policy.answer  # type: ignore[attr-defined]
        controller.choose(1)
    return controller.snapshot()


def test_what_the_server_forgot_is_counted(controller: AdaptiveController) -> None:
    log = SwitchLog(rounds(controller, 0))
    log.read(rounds(controller, RECENT_SWITCHES + 7))
    assert (len(log.switches), log.unseen) == (RECENT_SWITCHES, 7)


def test_forced_depths_are_not_the_policys(controller: AdaptiveController) -> None:
    log = SwitchLog(rounds(controller, 1))  # at 3
    controller.force_steps(1)
    rounds(controller, 1)
    controller.force_steps(None)
    log.read(rounds(controller, 2))  # released to 1 or 3, then the other
    assert [switch.from_steps for switch in log.switches] in ([1], [3])
    assert log.unseen == 0


def test_asks_again_after_a_while() -> None:
    now = [0.0]
    log = SwitchLog(None, clock=lambda: now[0])
    now[0] = READ_SECONDS
    assert log.is_due()
    log.read(None)
    assert not log.is_due()
