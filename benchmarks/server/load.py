"""Requests on a live server: one batch, a closed loop of N, or Poisson arrivals; streamed where times are wanted."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from uuid import uuid4

import aiohttp
import orjson

from benchmarks.server.process import CUSTOM, Declared
from sglang_adaptive.client import Client

PROMPT_TOKENS = 128
VOCABULARY = 200
"""Prompts are drawn from the lowest token ids, which every model has; what they say does not matter here."""

ABORTED = "aborted"
Declare = Callable[[int], Declared | None]
"""From a request's number to its own acceptance process; None for the common one."""


@dataclass
class Answer:
    """One streamed request; seconds on one clock."""

    sent: float
    chunks: list[tuple[float, int]] = field(default_factory=list)
    """When each part came, and the tokens that had come by then."""

    failed: str | None = None

    @property
    def time_to_first_token(self) -> float:
        return self.chunks[0][0] - self.sent

    @property
    def latency(self) -> float:
        return self.chunks[-1][0] - self.sent

    def inter_token_latencies(self) -> Iterator[float]:
        """Yield the time a token took, for every token after the first part.

        Tokens of one round come together: each is given its share of the time since the part before.
        """
        for (earlier, had), (now, have) in zip(self.chunks, self.chunks[1:], strict=False):
            new = have - had
            for _ in range(new):
                yield (now - earlier) / new


def prompt(seed: int) -> list[int]:
    """Return PROMPT_TOKENS random tokens; the same for the same seed."""
    draw = random.Random(seed)
    return [draw.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)]


def request_body(
    number: int, tokens: int, declare: Declare | None, stream: bool, rid: str, rank: int | None = None
) -> dict[str, Any]:
    """Return SGLang's /generate body of request *number*, which generates *tokens* tokens greedily.

    *rank* of attention DP decodes it, None for any.
    """
    sampling: dict[str, Any] = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    own = declare(number) if declare else None
    if own is not None:
        sampling["custom_params"] = {CUSTOM: [own.p, own.decay]}
    where = {} if rank is None else {"routed_dp_rank": rank}
    return {"input_ids": prompt(number), "sampling_params": sampling, "stream": stream, "rid": rid, **where}


class Batch:
    """*requests* prompts sent as one call, in the background, so that they begin together; aborted on the way out."""

    def __init__(self, client: Client, requests: int, tokens: int, declare: Declare | None = None) -> None:
        self._client = client
        bodies = [request_body(number, tokens, declare, False, "") for number in range(requests)]
        self._body = {
            "input_ids": [body["input_ids"] for body in bodies],
            "sampling_params": [body["sampling_params"] for body in bodies],
        }
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._aborting = False
        self.error: Exception | None = None

    def __enter__(self) -> Batch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._aborting = True
        while self.is_running():
            self._client.post("/abort_request", {"rid": "", "abort_all": True})
            self._thread.join(0.05)

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait until every request is answered in full."""
        self._thread.join()

    def _send(self) -> None:
        try:
            self._client.post("/generate", self._body)
        except Exception as error:  # told to whoever waits for the batch
            if not self._aborting:
                self.error = error


class ClosedLoop:
    """Keeps *concurrency* requests in flight, each followed by another; *resize* while it runs.

    A context manager; on the way out the requests in flight are aborted. Answers that ended are in ``answers``.
    """

    def __init__(
        self,
        client: Client,
        concurrency: int,
        tokens: int,
        *,
        stream: bool = False,
        declare: Declare | None = None,
        seed: int = 0,
        rank: int | None = None,
    ) -> None:
        self._client, self._tokens, self._stream, self._declare = client, tokens, stream, declare
        self._rank = rank
        self._target = concurrency
        self._number = seed * 1_000_000
        self._slots: dict[int, str] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.answers: list[Answer] = []
        self.errors: list[str] = []

    def __enter__(self) -> ClosedLoop:
        self._thread.start()
        self._call(self._open())
        self.resize(self._target)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(Exception):
            self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def resize(self, concurrency: int) -> None:
        """Change the number of requests in flight: new ones start at once, surplus ones are aborted."""
        self._target = concurrency
        self._call(self._fill())

    def _call(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(120)

    async def _open(self) -> None:
        self._session = _session()

    async def _fill(self) -> None:
        for slot in range(self._target):
            if slot not in self._slots:
                self._slots[slot] = ""
                task = asyncio.create_task(self._keep_busy(slot))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        for slot, rid in list(self._slots.items()):
            if slot >= self._target and rid:
                await self._abort({"rid": rid})

    async def _keep_busy(self, slot: int) -> None:
        assert self._session is not None
        while slot < self._target:
            self._number += 1
            rid = self._slots[slot] = uuid4().hex
            body = request_body(self._number, self._tokens, self._declare, self._stream, rid, self._rank)
            answer = await ask(self._session, self._client.url, body)
            if answer.failed is None:
                self.answers.append(answer)
            elif slot < self._target and answer.failed != ABORTED:
                self.errors.append(answer.failed)
                break
        del self._slots[slot]

    async def _close(self) -> None:
        self._target = 0
        for _ in range(200):
            if not self._tasks:
                break
            await self._abort({"rid": "", "abort_all": True})
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=0.1)
        assert self._session is not None
        await self._session.close()

    async def _abort(self, body: dict[str, Any]) -> None:
        assert self._session is not None
        async with self._session.post(self._client.url + "/abort_request", json=body) as response:
            await response.read()


def poisson(
    client: Client, rate: float, seconds: float, tokens: int, declare: Declare | None = None, seed: int = 0
) -> list[Answer]:
    """Send streamed requests at exponential intervals, *rate* a second, for *seconds*; return all when all ended."""
    draw = random.Random(seed)
    times, at = [], draw.expovariate(rate)
    while at < seconds:
        times.append(at)
        at += draw.expovariate(rate)
    bodies = [request_body(number, tokens, declare, True, uuid4().hex) for number in range(len(times))]
    return at_times(client, times, bodies)


def at_times(client: Client, times: Sequence[float], bodies: Sequence[dict[str, Any]]) -> list[Answer]:
    """Send each body at its time, in seconds from now; return all when all ended."""
    return asyncio.run(_open_loop(client, times, bodies))


async def _open_loop(client: Client, times: Sequence[float], bodies: Sequence[dict[str, Any]]) -> list[Answer]:
    async with _session() as session:
        begin = time.perf_counter()

        async def one(at: float, body: dict[str, Any]) -> Answer:
            await asyncio.sleep(max(0.0, begin + at - time.perf_counter()))
            return await ask(session, client.url, body)

        return list(await asyncio.gather(*map(one, times, bodies)))


def _session() -> aiohttp.ClientSession:
    # The server closes what is idle for five seconds; a request that is sent just then would fail.
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0),
        timeout=aiohttp.ClientTimeout(total=None, sock_read=300),
    )


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Answer:
    """Send one request and return when it was answered; what failed is in the answer, nothing is raised."""
    answer = Answer(time.perf_counter())
    try:
        async with session.post(url + "/generate", data=orjson.dumps(body), headers=_JSON) as response:
            if response.status != 200:
                answer.failed = f"{response.status} {(await response.text())[:200]}"
            elif body["stream"]:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        _note(answer, orjson.loads(line[6:]))
            else:
                _note(answer, orjson.loads(await response.read()))
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        answer.failed = f"{type(error).__name__}: {error}"
    if answer.failed is None and not answer.chunks:
        answer.failed = "an empty answer"
    return answer


def _note(answer: Answer, part: dict[str, Any]) -> None:
    if "error" in part:
        answer.failed = str(part["error"])[:200]
        return
    information = part["meta_info"]
    finish = information.get("finish_reason") or {}
    if finish.get("type") == "abort":
        answer.failed = ABORTED
        return
    tokens = information["completion_tokens"]
    if not answer.chunks or tokens > answer.chunks[-1][1]:
        answer.chunks.append((time.perf_counter(), tokens))


_JSON = {"Content-Type": "application/json"}
