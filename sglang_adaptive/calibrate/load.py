"""A steady load of N concurrent requests until it is stopped."""

from __future__ import annotations

import random
import threading
from types import TracebackType
from uuid import uuid4

from sglang_adaptive.client import Client, RequestError

PROMPT_TOKENS = 128
VOCABULARY = 200
"""Prompts are drawn from token ids below this, which every model has."""


class SteadyLoad:
    """Keeps *requests* generations running, each ``max_new_tokens`` long and then started again.

    As a context manager: on the way out the requests in flight are aborted. ``error`` is the first failure.
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
            self._stop.set()  # the server is gone; its connections end by themselves
