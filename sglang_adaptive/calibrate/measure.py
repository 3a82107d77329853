"""Measures round times of a live server, one batch size and number of steps at a time, under a steady load."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any
from uuid import uuid4

from sglang_adaptive.adaptive_server import AdaptiveServer, NotReady, most_running
from sglang_adaptive.calibrate.explain import looked_up
from sglang_adaptive.client import Client, RequestError
from sglang_adaptive.policy.profile import ProfileCell

PROMPT_TOKENS = 128
VOCABULARY = 200
"""Prompts are drawn from token ids below this, which exist in every model."""


class SteadyLoad:
    """Keeps *requests* generations running, each ``max_new_tokens`` long and restarted when done.

    As a context manager, it aborts the requests in flight on exit. ``error`` is the first failure.
    """

    def __init__(self, client: Client, requests: int, max_new_tokens: int) -> None:
        self._client, self._max_new_tokens = client, max_new_tokens
        self._stop = threading.Event()
        self._running: set[str] = set()
        self._threads = [
            threading.Thread(target=self._keep_busy, args=(seed,), daemon=True) for seed in range(requests)
        ]
        self.error: Exception | None = None

    def __enter__(self) -> SteadyLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        while any(thread.is_alive() for thread in self._threads):
            for rid in list(self._running):
                self._abort(rid)
            for thread in self._threads:
                thread.join(0.05)

    def _keep_busy(self, seed: int) -> None:
        draw = random.Random(seed)
        while not self._stop.is_set() and self.error is None:
            rid = uuid4().hex
            self._running.add(rid)
            prompt = [draw.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)]
            try:
                self._client.generate(prompt, self._max_new_tokens, rid=rid, ignore_eos=True)
            except (RequestError, OSError) as error:
                if not self._stop.is_set():
                    self.error = error
            finally:
                self._running.discard(rid)

    def _abort(self, rid: str) -> None:
        try:
            self._client.abort(rid)
        except (RequestError, OSError):
            self._stop.set()  # the server is gone; its connections end on their own


POLL_SECONDS = 0.1
PATIENCE_SECONDS = 120.0
SPARE_TOKENS = 128
"""KV slots that SGLang reserves per request beyond its text."""
LEAST_TOKENS = 64
"""Length of the shortest requests; shorter ones would spend most of the time in prefill."""
Progress = Callable[[int, int, int, int], None]
"""Called with batch size, steps, rounds timed so far, rounds wanted."""


def measure(
    server: AdaptiveServer,
    batch_sizes: Sequence[int],
    rounds: int,
    max_new_tokens: int,
    progress: Progress = lambda *_: None,
) -> Iterator[ProfileCell]:
    """Yield a cell for every batch size and all steps with a runtime state, and with graphs if the server uses any.

    The steps are held, so every cell has steady rounds at fixed steps. The previous hold is restored at the end, even
    after an error. Requests are shorter than *max_new_tokens* if the KV cache cannot hold the batch otherwise. Raises
    NotReady when the server stops answering or a batch size does not become steady.
    """
    try:
        for batch_size in batch_sizes:
            tokens = min(max_new_tokens, room(server.info, batch_size))
            with SteadyLoad(server.client, batch_size, tokens) as load:
                for steps in depths(server.state, batch_size):
                    yield _cell(server, load, batch_size, steps, rounds, progress)
    finally:
        server.put_back()


def room(info: Mapping[str, Any], batch_size: int) -> int:
    """Return how many tokens each of *batch_size* requests can generate in the server's KV cache; NotReady if too few.

    SGLang retracts requests that do not fit, so the batch would never keep its size.
    """
    slots = int(info["max_total_num_tokens"])
    tokens = slots // batch_size - PROMPT_TOKENS - SPARE_TOKENS
    if tokens < LEAST_TOKENS:
        raise NotReady(
            f"{batch_size} requests do not fit into the server's KV cache of {slots} tokens; expected at least "
            f"{batch_size * (LEAST_TOKENS + PROMPT_TOKENS + SPARE_TOKENS)}, or smaller --batch-sizes"
        )
    return tokens


def check_sizes(info: Mapping[str, Any], sizes: Sequence[int], url: str) -> None:
    """Raise NotReady if the server of *info* runs fewer requests at once than the largest of *sizes*."""
    most = most_running(info)
    if most is not None and max(sizes) > most:
        raise NotReady(f"--batch-sizes: got {max(sizes)}, but {url} runs {most} requests at once")


def depths(state: Mapping[str, Any], batch_size: int) -> list[int]:
    """Return the steps that run at *batch_size* as they would in service.

    Steps have graphs only where the policy may choose them; otherwise they run in a larger graph or without one.
    """
    graphs = {tier["steps"]: tier["graph_batch_sizes"] for tier in state["startup"]["tiers"]}
    captured = sorted({size for sizes in graphs.values() for size in sizes or ()})
    padded = next((size for size in captured if size >= batch_size), None)
    drafted = sorted({*state["tiers"]} - {*looked_up(state)})
    return [steps for steps in drafted if padded is None or padded in (graphs[steps] or ())]


def _cell(
    server: AdaptiveServer, load: SteadyLoad, batch_size: int, steps: int, rounds: int, progress: Progress
) -> ProfileCell:
    server.hold(steps)
    before = _reading(server, batch_size, steps)[0]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        server.renew()
        timed, seconds = _reading(server, batch_size, steps)
        progress(batch_size, steps, min(timed - before, rounds), rounds)
        if timed - before >= rounds:
            return ProfileCell(batch_size, steps, seconds, timed - before)
        if load.error is not None:
            raise NotReady(f"a request of the load failed: {load.error}")
        if time.monotonic() > deadline:
            raise NotReady(
                f"only {timed - before} of {rounds} rounds ran at batch size {batch_size} in {PATIENCE_SECONDS:.0f} s: "
                "is the server serving others?"
            )
        time.sleep(POLL_SECONDS)


def _reading(server: AdaptiveServer, batch_size: int, steps: int) -> tuple[int, float]:
    """Return the rounds timed at this cell since the server started, and the median of the latest, in seconds."""
    for cell in server.refresh()["round_times"]:
        if (cell["batch_size"], cell["steps"]) == (batch_size, steps):
            return cell["rounds"], cell["seconds"]
    return 0, 0.0
