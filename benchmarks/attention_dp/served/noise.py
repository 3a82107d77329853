"""Requests that disturb one rank: long prompts in chunks, bursts of short ones, and requests that are aborted."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any
from uuid import uuid4

from sglang_adaptive.client import Client, RequestError

LONG, SHORT = 1400, 20
"""Tokens of the two kinds of prompts."""
AT_ONCE = 6
PATIENCE = 60.0
"""Seconds to wait for an answer: of ranks that hang nobody gets one."""


class Noise:
    """Sends such requests to *rank* from the first to the last line of a ``with`` block, and waits for their end."""

    def __init__(self, server: Client, rank: int, vocabulary: int, seed: int = 0) -> None:
        self._server = Client(server.host, server.port, PATIENCE)
        self._rank, self._vocabulary = rank, vocabulary
        self._draw, self._done = random.Random(seed), threading.Event()
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._counts = {"long": 0, "short": 0, "aborted": 0, "failed": 0}
        self._first_error: str | None = None

    def __enter__(self) -> Noise:
        for _ in range(AT_ONCE):
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
            kind = self._draw.choice(list(self._counts)[:3])
            try:
                self._send(kind)
            except (OSError, RequestError, ValueError) as error:
                self._counts["failed"] += 1
                self._first_error = self._first_error or f"{type(error).__name__}: {error}"[:200]
                self._done.wait(0.5)
            else:
                self._counts[kind] += 1

    def _send(self, kind: str) -> None:
        length, tokens = {"long": (LONG, 4), "short": (SHORT, 12), "aborted": (SHORT, 400)}[kind]
        rid = uuid4().hex
        body = {
            "input_ids": [self._draw.randrange(16, self._vocabulary) for _ in range(length)],
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
            "routed_dp_rank": self._rank,
            "rid": rid,
        }
        timer = threading.Timer(self._draw.uniform(0.02, 0.3), self._abort, (rid,)) if kind == "aborted" else None
        if timer is not None:
            timer.start()
        self._server.post("/generate", body)

    def _abort(self, rid: str) -> None:
        with suppress(OSError, RequestError):
            self._server.abort(rid)
