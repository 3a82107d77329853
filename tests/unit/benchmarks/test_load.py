"""Load on live servers: arrivals, latencies, and the request loop on an HTTP server that answers like SGLang."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.harness.load import Answer, Make, arrival_times, run_list


@dataclass
class Fake:
    """Answer /generate like SGLang, token by token; an abort returns the tokens so far."""

    together: int = 1
    """How many of the first requests must have arrived before any of them gets a token."""

    running: int = 0
    seen: list[tuple[int, int]] = field(default_factory=list)
    """input_ids[0] of each request, and how many ran with it."""

    url: str = ""
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.running += 1
        self.seen.append((body["input_ids"][0], self.running))
        had, wanted = 0, body["sampling_params"]["max_new_tokens"]
        if self.running >= self.together:
            self.begun.set()
        await self.begun.wait()
        while had < wanted and not self.aborted.is_set():
            await asyncio.sleep(0.001)
            had += 1
        self.running -= 1
        return web.json_response({"meta_info": {"completion_tokens": had}, "output_ids": [0] * had})

    async def abort(self, request: web.Request) -> web.Response:
        assert (await request.json())["abort_all"]
        self.aborted.set()
        return web.Response()


@pytest.fixture
def fake() -> Iterator[Fake]:
    served, app, loop = Fake(), web.Application(), asyncio.new_event_loop()
    app.add_routes([web.post("/generate", served.generate), web.post("/abort_request", served.abort)])
    server = TestServer(app)
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def run(what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, loop).result(20)

    run(server.start_server())
    served.url = str(server.make_url(""))
    yield served
    run(server.close())
    loop.call_soon_threadsafe(loop.stop)


def body(tokens: int) -> Make:
    return lambda number, place: {"input_ids": [place], "sampling_params": {"max_new_tokens": tokens + number}}


def test_the_loop_keeps_the_batch_full_and_cuts_what_is_left(fake: Fake) -> None:
    fake.together = 4
    endless = 10**6
    done = run_list(fake.url, 12, 4, lambda number, place: body(endless if number == 11 else 20)(number, place))
    assert sorted(done.answers) == list(range(12)) and not done.failed
    assert max(count for _, count in fake.seen) == 4
    assert {place for place, _ in fake.seen} == set(range(4))
    tokens = [done.answers[number]["meta_info"]["completion_tokens"] for number in range(12)]
    assert tokens[:8] == [20 + number for number in range(8)]
    assert tokens[11] < endless
    assert done.tokens == sum(tokens) and done.seconds > 0


def test_without_a_cut_every_request_ends(fake: Fake) -> None:
    done = run_list(fake.url, 6, 4, body(3), cut=False)
    assert [done.answers[number]["meta_info"]["completion_tokens"] for number in range(6)] == [3 + n for n in range(6)]
    assert run_list(fake.url, 3, 1, body(2)).tokens == 2 + 3 + 4


def test_arrivals_come_at_their_rate() -> None:
    times = arrival_times(50, 200.0, seed=1)
    assert times == arrival_times(50, 200.0, seed=1) and times == sorted(times) and times[-1] < 200
    assert abs(len(times) / 200 - 50) < 5 * math.sqrt(50 / 200)
    assert len(arrival_times(0.1, 0.5, 1, 8)) == 8


def test_latencies_of_a_streamed_answer() -> None:
    answer = Answer(sent=1.0, chunks=[(1.5, 1), (1.6, 3), (2.0, 4)])
    assert answer.time_to_first_token == 0.5 and answer.latency == 1.0
    assert list(answer.inter_token_latencies()) == pytest.approx([0.05, 0.05, 0.4])
