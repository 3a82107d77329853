"""The inputs of graphs are looked up once per number of requests, and keep no graph alive."""

from __future__ import annotations

import gc
import logging
import weakref
from types import SimpleNamespace

import pytest

from sglang_adaptive.sglang_plugin.setup import OTHER_PREPARATION, Setup
from sglang_adaptive.sglang_plugin.stages.fast_path.short_passes import Plans


class Runner:
    max_bs = 4


def test_a_plan_is_made_once_for_each_number_of_requests() -> None:
    asked, plans, runner = [], Plans[int]("relay"), Runner()

    def setup() -> Setup:
        asked.append("setup")
        return Setup()

    def made(_: Runner, requests: int) -> int:
        asked.append(f"{requests} requests")
        return 10 * requests

    found = [plans.of(runner, requests, setup, made) for requests in (1, 3, 1, 3, 5)]
    assert found == [10, 30, 10, 30, None], "the graphs are of 4 requests at most"
    assert asked == ["setup", "1 requests", "3 requests"]
    assert plans.of(None, 1, setup, made) is None


def test_a_reason_is_logged_once_and_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    plans, runner, found = Plans[int]("short-verify"), Runner(), Setup(SimpleNamespace(plan_stream="one"))
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert plans.of(runner, 1, lambda: found, lambda *_: 1) is None
        assert not plans.may(runner, Setup)
    assert caplog.messages == [f"adaptive: short-verify is off: {OTHER_PREPARATION.phrase}"]


def test_no_runner_is_kept_alive() -> None:
    plans, runner = Plans[int]("relay"), Runner()
    assert plans.of(runner, 1, Setup, lambda *_: 1) == 1
    gone = weakref.ref(runner)
    del runner
    gc.collect()
    assert gone() is None
