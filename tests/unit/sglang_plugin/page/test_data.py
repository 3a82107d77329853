"""/adaptive.json: its documented schema, how often the scheduler is asked, and what failures look like."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.profile import ProfileKey
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.round_times import RoundClock
from sglang_adaptive.sglang_plugin.page import routes
from sglang_adaptive.sglang_plugin.page.routes import SharedFetch
from tests.fakes import Ticks, controller, ema, with_alarm, with_audit
from tests.json_page import DOCUMENT, documented, documented_paths
from tests.loops import in_a_loop

VERSIONS = {"sglang": "0.5.23", "sglang_adaptive": "0.1.0"}
KEY = ProfileKey("target", "draft", "gpu", 1, 1, "fa3", {"model": "bfloat16"}, {"sglang": "0.5.23"})
INACTIVE = {"active": False, "reason": "speculative_eagle_topk=4", "dp_rank": 0}
FROM_THE_WORKER = {"ranks[].off", "ranks[].zero_steps", "ranks[].short_rounds"}
"""Fields that a controller without SGLang's worker lacks; the tests of a running server cover them."""


def served(policy: AdaptivePolicy) -> AdaptiveController:
    ticks, looks_up = Ticks(), isinstance(policy, ThroughputPolicy) and policy.options.lookup
    found = controller(policy, RoundClock(ticks), looks_up)
    found.replace_policy(policy, by="a test")
    for index in range(120):
        ticks.now += 0.02
        found.force_steps(1 if 40 <= index < 50 else None)
        batch_size = 8 if index >= 60 and not looks_up else 2
        found.choose(batch_size)
        steps = found.states.live.steps
        found.verified([steps if index < 80 else 0] * batch_size, batch_size)
    return found


def rank(policy: AdaptivePolicy, dp_rank: int = 0) -> dict[str, Any]:
    return {**served(policy).snapshot(), "profile_key": KEY.as_dict(), "dp_rank": dp_rank}


def encoded(*ranks: dict[str, Any]) -> dict[str, Any]:
    body = routes.data_of(ranks, time=1.5, model="tiny", versions=VERSIONS)
    document: dict[str, Any] = json.loads(body)
    return document


def test_the_documented_schema_is_what_is_sent() -> None:
    seen: set[str] = set()
    audited = {**with_audit(with_alarm(served(ema().policy)), "wrong").snapshot(), "dp_rank": 0}
    looks_up = ThroughputPolicy(3, ThroughputOptions(lookup=True, lookup_memory_mb=1))
    policies = (ThroughputPolicy(3), looks_up, ema().policy)
    for document in (*(encoded(rank(policy)) for policy in policies), encoded(INACTIVE, audited)):
        seen |= documented_paths(document)
    assert set(documented()) - seen == FROM_THE_WORKER, "documented and not sent"


def test_the_documented_history_is_what_is_sent() -> None:
    histories = (served(ThroughputPolicy(3)).history(900), served(ema().policy).history(3600), None)
    ranks = [{"dp_rank": index, "history": history} for index, history in enumerate(histories)]
    document = json.loads(routes.data_of(ranks, time=1.5))
    assert documented_paths(document, routes.HISTORY_PATH) == set(documented(routes.HISTORY_PATH))


def test_the_documented_version_is_the_one_sent() -> None:
    assert encoded(INACTIVE)["version"] == routes.VERSION == 1
    assert f"This is version {routes.VERSION}" in DOCUMENT.read_text()


def test_replicas_keep_their_place_in_whatever_order_they_answer() -> None:
    policy = ema().policy
    document = encoded(rank(policy, dp_rank=2), rank(policy, dp_rank=0), {**INACTIVE, "dp_rank": 1})
    assert [one["dp_rank"] for one in document["ranks"]] == [0, 1, 2]


class Scheduler:
    def __init__(self) -> None:
        self.asked = 0
        self.ready = asyncio.Event()
        self.now = 100.0
        self.shared = SharedFetch(self.fetch, lambda: self.now)

    async def fetch(self) -> bytes:
        self.asked += 1
        await self.ready.wait()
        return b"answer %d" % self.asked


@in_a_loop
async def test_viewers_share_one_fetch_a_second() -> None:
    scheduler = Scheduler()
    scheduler.ready.set()
    assert await asyncio.gather(*(scheduler.shared.latest() for _ in range(50))) == [b"answer 1"] * 50
    scheduler.now += 0.99
    assert await scheduler.shared.latest() == b"answer 1"
    scheduler.now += 0.01
    assert await scheduler.shared.latest() == b"answer 2"
    assert scheduler.asked == 2


@in_a_loop
async def test_a_slow_scheduler_is_asked_once_and_its_answer_kept() -> None:
    scheduler = Scheduler()
    for _ in range(3):
        scheduler.now += 60.0
        with pytest.raises(TimeoutError):
            await scheduler.shared.latest(patience=0.0)
    scheduler.ready.set()
    assert await scheduler.shared.latest() == b"answer 1" and scheduler.asked == 1


@in_a_loop
async def test_a_viewer_that_leaves_takes_nothing_from_the_others() -> None:
    scheduler = Scheduler()
    first, second = (asyncio.ensure_future(scheduler.shared.latest()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    scheduler.ready.set()
    assert await second == b"answer 1" and first.cancelled()


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (TimeoutError(), 503, "the scheduler is busy and has not answered yet"),
        (KeyError("adaptive"), 500, "KeyError: 'adaptive'"),
    ],
)
def test_a_failed_fetch_is_one_line(error: Exception, status: int, message: str) -> None:
    async def failing() -> bytes:
        raise error

    app = FastAPI()
    routes.add_routes(app, failing, lambda span: failing())
    with TestClient(app) as client:
        for path in (routes.DATA, routes.HISTORY_PATH):
            answer = client.get(path)
            assert (answer.status_code, answer.json()) == (status, {"error": {"message": message}})


@pytest.mark.parametrize(
    ("query", "span"),
    [
        *(("", 900), ("?span=60", 60), ("?span=3600", 3600)),
        *((query, None) for query in ("?span=61", "?span=", "?span=60&span=900", "?span=" + "9" * 5000)),
    ],
)
def test_a_history_of_spans_that_are_kept(query: str, span: int | None) -> None:
    async def fetch() -> bytes:
        return b"{}"

    async def fetch_history(seconds: int) -> bytes:
        return b"%d" % seconds

    app = FastAPI()
    routes.add_routes(app, fetch, fetch_history)
    with TestClient(app) as client:
        answer = client.get(routes.HISTORY_PATH + query)
    assert answer.status_code == (400 if span is None else 200)
    if span is None:
        message = answer.json()["error"]["message"]
        assert message.startswith("span: got ") and "60, 900, 3600" in message and len(message) < 200
    else:
        assert answer.json() == span
