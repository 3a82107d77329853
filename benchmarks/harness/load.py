"""Requests on a live server: one batch, a closed loop of N, a fixed list of requests N at a time, arrivals, noise."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from uuid import uuid4

import aiohttp
import orjson

from benchmarks.harness.acceptance import CUSTOM, Declared
from sglang_adaptive.client import Client, RequestError

PROMPT_TOKENS = 128
VOCABULARY = 200
"""Prompts are drawn from the lowest token ids, which every model has; their content does not matter."""

ABORTED = "aborted"
Body = dict[str, Any]
Declare = Callable[[int], Declared | None]
"""From a request's number to its own acceptance process; None for the common one."""

Make = Callable[[int, int], Body]
"""From a request's number and its place in the batch to SGLang's /generate body."""

Blocks = Callable[[int, int], Make]
"""From a block's number and the batch size to what makes the block's requests."""

_JSON = {"Content-Type": "application/json"}


@dataclass
class Answer:
    """One request; seconds on one clock."""

    sent: float
    chunks: list[tuple[float, int]] = field(default_factory=list)
    """When each part arrived, and the tokens received by then."""
    content: Body = field(default_factory=dict)
    """SGLang's last part; without streaming, the whole answer."""
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
            yield from [(now - earlier) / (have - had)] * (have - had)


def prompt(seed: int, tokens: int = PROMPT_TOKENS) -> list[int]:
    """Return random tokens; the same for the same seed."""
    draw = random.Random(seed)
    return [draw.randrange(VOCABULARY) for _ in range(tokens)]


def greedy(tokens: int, **more: Any) -> Body:
    """Return the sampling parameters of exactly *tokens* greedy tokens."""
    return {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **more}


def request_body(
    number: int, tokens: int, declare: Declare | None = None, stream: bool = False, rank: int | None = None
) -> Body:
    """Return SGLang's /generate body of request *number*; *rank* of attention DP decodes it, None for any."""
    sampling = greedy(tokens)
    own = declare(number) if declare else None
    if own is not None:
        sampling["custom_params"] = {CUSTOM: [own.p, own.decay]}
    where = {} if rank is None else {"routed_dp_rank": rank}
    return {"input_ids": prompt(number), "sampling_params": sampling, "stream": stream, **where}


async def ask(session: aiohttp.ClientSession, url: str, body: Body) -> Answer:
    """Send one request and wait for its answer; errors are in the answer and not raised."""
    answer = Answer(time.perf_counter())
    try:
        async with session.post(url + "/generate", data=orjson.dumps(body), headers=_JSON) as response:
            if response.status != 200:
                answer.failed = f"{response.status} {(await response.text())[:200]}"
            elif body.get("stream"):
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


def _note(answer: Answer, part: Body) -> None:
    if "error" in part:
        answer.failed = str(part["error"])[:200]
        return
    answer.content, information = part, part["meta_info"]
    if (information.get("finish_reason") or {}).get("type") == "abort":
        answer.failed = ABORTED
        return
    tokens = information["completion_tokens"]
    if not answer.chunks or tokens > answer.chunks[-1][1]:
        answer.chunks.append((time.perf_counter(), tokens))


def _session() -> aiohttp.ClientSession:
    # The server closes connections idle for five seconds; a request sent at that moment would fail.
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0),
        timeout=aiohttp.ClientTimeout(total=None, sock_read=300),
    )


async def _abort(session: aiohttp.ClientSession, url: str, rid: str = "") -> None:
    """Abort one request, or all without *rid*."""
    async with session.post(url + "/abort_request", json={"rid": rid} if rid else _ALL) as response:
        await response.read()


_ALL = {"rid": "", "abort_all": True}


class Batch:
    """*requests* prompts sent as one call, in the background, so that they start together; aborted on exit."""

    def __init__(self, client: Client, requests: int, tokens: int, declare: Declare | None = None) -> None:
        self._client = client
        bodies = [request_body(number, tokens, declare) for number in range(requests)]
        self._body = {key: [body[key] for body in bodies] for key in ("input_ids", "sampling_params")}
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._aborting = False
        self.error: Exception | None = None

    def __enter__(self) -> Batch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._aborting = True
        while self.is_running():
            self._client.post("/abort_request", _ALL)
            self._thread.join(0.05)

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait until every request is answered in full."""
        self._thread.join()

    def _send(self) -> None:
        try:
            self._client.post("/generate", self._body)
        except Exception as error:  # raised for the caller that waits for the batch
            if not self._aborting:
                self.error = error


class ClosedLoop:
    """Keeps *concurrency* requests in flight, each followed by another; *resize* while it runs.

    A context manager; on the way out the requests in flight are aborted. Answers that ended are in ``answers``.
    """

    def __init__(
        self, client: Client, concurrency: int, tokens: int, *, stream: bool = False, declare: Declare | None = None,
        seed: int = 0, rank: int | None = None,
    ) -> None:  # fmt: skip
        self._url, self._target, self._number = client.url, concurrency, seed * 1_000_000
        self._make: Callable[[int], Body] = lambda number: request_body(number, tokens, declare, stream, rank)
        self._slots: dict[int, str] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._session: aiohttp.ClientSession
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
                await _abort(self._session, self._url, rid)

    async def _keep_busy(self, slot: int) -> None:
        while slot < self._target:
            self._number += 1
            rid = self._slots[slot] = uuid4().hex
            answer = await ask(self._session, self._url, {**self._make(self._number), "rid": rid})
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
            await _abort(self._session, self._url)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=0.1)
        await self._session.close()


@dataclass
class Done:
    """The results of a list of requests."""

    seconds: float = 0.0
    answers: dict[int, Body] = field(default_factory=dict)
    """SGLang's answer by number; for requests that were cut, their partial answer."""
    failed: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(answer["meta_info"]["completion_tokens"] for answer in self.answers.values())


def in_blocks(total: int, requests_of: Callable[[int], int], body: Make) -> Blocks:
    """Return blocks of ``requests_of(batch size)`` requests over *total* items, repeated as needed.

    *body* makes a request from an item's number and a place in the batch.
    """

    def make_of(number: int, size: int) -> Make:
        many = requests_of(size)
        return lambda request, place: body((number * many + request % many) % total, place)

    return make_of


def group_of(concurrency: int) -> int:
    """Return how many places must be free before they are filled again: an eighth of the batch, at least one.

    Requests that join one by one would interrupt every decode round of a large batch with a prefill.
    """
    return max(1, concurrency // 8)


def run_list(
    url: str, requests: int, concurrency: int, make: Make, *, cut: bool = True, patience: float = 90.0
) -> Done:
    """Keep *concurrency* requests in flight until *requests* were sent, then abort those still running.

    So all contenders decode the same requests in the same order, at a full batch. Without *cut* every request ends.
    Raises TimeoutError after *patience* seconds, and RuntimeError if no request succeeded.
    """
    done = asyncio.run(asyncio.wait_for(_list(url, requests, concurrency, make, cut), patience))
    if not done.answers:
        raise RuntimeError(f"no request succeeded: {done.failed[:1]}")
    return done


async def _list(url: str, requests: int, concurrency: int, make: Make, cut: bool) -> Done:
    done, group = Done(), group_of(concurrency)
    free, tasks, sent, cutting = list(range(min(concurrency, requests))), {}, 0, False
    async with _session() as session:

        async def one(number: int, place: int) -> None:
            answer = await ask(session, url, {**make(number, place), "rid": uuid4().hex})
            if answer.content:
                done.answers[number] = answer.content
            else:
                done.failed.append(str(answer.failed)[:300])

        begin = time.perf_counter()
        try:
            while True:
                if sent < requests and (len(free) >= group or not tasks):
                    while free and sent < requests:
                        place, number, sent = free.pop(0), sent, sent + 1
                        tasks[asyncio.create_task(one(number, place))] = place
                elif sent == requests and cut and tasks and not cutting and len(free) >= group and concurrency > 1:
                    cutting = True
                    await _abort(session, url)
                if not tasks:
                    break
                ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                free += sorted(tasks.pop(task) for task in ended)
        finally:
            if tasks:  # out of patience: leave the server without requests
                await _abort(session, url)
        done.seconds = time.perf_counter() - begin
    return done


def arrival_times(rate: float, seconds: float, seed: int, least: int = 0) -> list[float]:
    """Return arrival times: exponential gaps, *rate* per second, for *seconds*; at least *least* of them."""
    draw = random.Random(seed)
    times, at = [], draw.expovariate(rate)
    while at < seconds or len(times) < least:
        times.append(at)
        at += draw.expovariate(rate)
    return times


def at_times(client: Client, times: Sequence[float], bodies: Sequence[Body]) -> list[Answer]:
    """Send each body at its time, in seconds from now; return when all ended. Raises RuntimeError if one failed."""

    async def everyone() -> list[Answer]:
        async with _session() as session:
            begin = time.perf_counter()

            async def one(at: float, body: Body) -> Answer:
                await asyncio.sleep(max(0.0, begin + at - time.perf_counter()))
                return await ask(session, client.url, {**body, "rid": uuid4().hex})

            return list(await asyncio.gather(*map(one, times, bodies)))

    answers = asyncio.run(everyone())
    failed = [answer.failed for answer in answers if answer.failed]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(answers)} requests failed: {failed[0]}")
    return answers


NOISE = {"long": (1400, 4), "short": (20, 12), "aborted": (20, 400)}
"""Kinds of disturbing requests: tokens of prompt and of answer."""

NOISE_AT_ONCE, NOISE_PATIENCE = 6, 60.0
"""Requests at a time, and seconds to wait for an answer: ranks that hang never answer."""


class Noise:
    """Requests that disturb a server: long prompts in chunks, bursts of short ones, and aborted requests.

    They are sent to *rank* of attention DP, or to any, during a ``with`` block, which waits for their end.
    """

    def __init__(self, client: Client, rank: int | None, vocabulary: int, seed: int = 0) -> None:
        self._client = Client(client.host, client.port, NOISE_PATIENCE)
        self._where = {} if rank is None else {"routed_dp_rank": rank}
        self._vocabulary = vocabulary
        self._draw, self._done = random.Random(seed), threading.Event()
        self._pool = ThreadPoolExecutor(NOISE_AT_ONCE)
        self._counts = {**dict.fromkeys(NOISE, 0), "failed": 0}
        self._first_error: str | None = None

    def __enter__(self) -> Noise:
        for _ in range(NOISE_AT_ONCE):
            self._pool.submit(self._keep_on)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._pool.shutdown()

    def counts(self) -> dict[str, Any]:
        """Return how many requests of each kind ended, and the first error."""
        return {**self._counts, "error": self._first_error}

    def _keep_on(self) -> None:
        while not self._done.is_set():
            kind = self._draw.choice(list(NOISE))
            try:
                self._send(kind)
            except (OSError, RequestError, ValueError) as error:
                self._counts["failed"] += 1
                self._first_error = self._first_error or f"{type(error).__name__}: {error}"[:200]
                self._done.wait(0.5)
            else:
                self._counts[kind] += 1

    def _send(self, kind: str) -> None:
        (length, tokens), rid = NOISE[kind], uuid4().hex
        ids = [self._draw.randrange(16, self._vocabulary) for _ in range(length)]
        if kind == "aborted":
            threading.Timer(self._draw.uniform(0.02, 0.3), self._abort, (rid,)).start()
        self._client.post("/generate", {"input_ids": ids, "sampling_params": greedy(tokens), "rid": rid, **self._where})

    def _abort(self, rid: str) -> None:
        with contextlib.suppress(OSError, RequestError):
            self._client.abort(rid)
