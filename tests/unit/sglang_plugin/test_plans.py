"""The inputs of graphs are looked up once per number of requests, and keep no graph alive."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator

import pytest

from sglang_adaptive.sglang_plugin.fast_path.plain import Plans


class Runner:
    max_bs = 4


def test_a_plan_is_made_once_for_each_number_of_requests() -> None:
    asked, plans, runner = [], Plans[int](), Runner()

    def nothing() -> Iterator[str]:
        asked.append("why not")
        yield from ()

    def made(_: Runner, requests: int) -> int:
        asked.append(f"{requests} requests")
        return 10 * requests

    found = [plans.of(runner, requests, "passes", nothing, made) for requests in (1, 3, 1, 3, 5)]
    assert found == [10, 30, 10, 30, None], "the graphs are of 4 requests at most"
    assert asked == ["why not", "1 requests", "3 requests"]
    assert plans.of(None, 1, "passes", nothing, made) is None


def test_a_reason_is_logged_once_and_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    plans, runner = Plans[int](), Runner()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert plans.of(runner, 1, "passes", lambda: iter(["the pool is virtual", "more"]), lambda *_: 1) is None
        assert not plans.may(runner, "passes", lambda: iter(()))
    assert caplog.messages == ["adaptive: passes are prepared by SGLang: the pool is virtual"]


def test_no_runner_is_kept_alive() -> None:
    plans, runner = Plans[int](), Runner()
    assert plans.of(runner, 1, "passes", lambda: iter(()), lambda *_: 1) == 1
    gone = weakref.ref(runner)
    del runner
    gc.collect()
    assert gone() is None
