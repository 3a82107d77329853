"""A closed loop over a fixed list of requests, cut when no request is left to fill the batch with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import aiohttp
import orjson

Body = dict[str, Any]
Make = Callable[[int, int], Body]
"""From a request's number and its place in the batch to SGLang's /generate body."""

_JSON = {"Content-Type": "application/json"}


@dataclass
class Done:
    """What a loop did."""

    seconds: float = 0.0
    answers: dict[int, Body] = field(default_factory=dict)
    """By number, SGLang's answer; of the requests that were cut, what they had."""

    failed: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(answer["meta_info"]["completion_tokens"] for answer in self.answers.values())


def group_of(concurrency: int) -> int:
    """Return how many places have to be free before they are filled again: an eighth of the batch, at least one.

    Requests that join one by one would interrupt every decode round of a large batch with a prefill.
    """
    return max(1, concurrency // 8)


def run(url: str, requests: int, concurrency: int, make: Make, *, cut: bool = True, patience: float = 90.0) -> Done:
    """Keep *concurrency* requests in flight until *requests* were sent, then abort what still runs.

    All contenders so decode the same requests in the same order, at a full batch. Without *cut* every request ends.
    Raises TimeoutError after *patience* seconds, and RuntimeError where no request succeeded.
    """
    done = asyncio.run(asyncio.wait_for(_loop(url, requests, concurrency, make, cut), patience))
    if not done.answers:
        raise RuntimeError(f"no request succeeded: {done.failed[:1]}")
    return done


async def _loop(url: str, requests: int, concurrency: int, make: Make, cut: bool) -> Done:
    done, group = Done(), group_of(concurrency)
    free, tasks, sent, cutting = list(range(min(concurrency, requests))), {}, 0, False
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        begin = time.perf_counter()
        try:
            while True:
                if sent < requests and (len(free) >= group or not tasks):
                    while free and sent < requests:
                        place, number, sent = free.pop(0), sent, sent + 1
                        body = {**make(number, place), "rid": uuid4().hex}
                        tasks[asyncio.create_task(_ask(session, url, number, body, done))] = place
                elif sent == requests and cut and tasks and not cutting and (len(free) >= group or concurrency == 1):
                    cutting = concurrency > 1
                    if cutting:
                        await _abort(session, url)
                if not tasks:
                    break
                ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                free += sorted(tasks.pop(task) for task in ended)
        finally:
            if tasks:  # out of patience: leave a server without requests to whoever is next
                await _abort(session, url)
        done.seconds = time.perf_counter() - begin
    return done


async def _ask(session: aiohttp.ClientSession, url: str, number: int, body: Body, done: Done) -> None:
    try:
        async with session.post(url + "/generate", data=orjson.dumps(body), headers=_JSON) as response:
            content = await response.read()
            answer = orjson.loads(content) if response.status == 200 else {"error": content[:200].decode()}
    except (aiohttp.ClientError, OSError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    if "meta_info" in answer:
        done.answers[number] = answer
    else:
        done.failed.append(str(answer)[:300])


async def _abort(session: aiohttp.ClientSession, url: str) -> None:
    async with session.post(url + "/abort_request", json={"rid": "", "abort_all": True}) as response:
        await response.read()
