"""Sends requests to a server, several at once, while its depth is held or changes."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from typing import Any

from sglang_adaptive.adaptive_server import NotReady
from sglang_adaptive.client import Client, RequestError, in_words

PATIENCE = 60.0
"""Seconds that a request may still take after the end of the time."""


def ask(
    client: Client, bodies: Sequence[Mapping[str, Any]], at_once: int, until: float,
    meanwhile: Callable[[], None], every: float,
) -> list[Any]:  # fmt: skip
    """Return the answers to *bodies*, with *at_once* of them in flight while there are enough.

    A refused request's answer is the refusal's text; a request not started by *until* (monotonic seconds) is None.
    *meanwhile* is called every *every* seconds in this thread. Raises NotReady when the server does not answer or
    requires a key.
    """
    found: list[Any] = [None] * len(bodies)
    left: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(bodies)):
        left.put(index)
    errors: list[Exception] = []

    def work() -> None:
        while time.monotonic() < until and not errors:
            try:
                index = left.get_nowait()
            except queue.Empty:
                return
            try:
                found[index] = _answer(client, bodies[index])
            except (RequestError, OSError, HTTPException) as error:
                errors.append(error)

    # Daemon threads, so that a hanging server does not block an interrupted command.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(at_once, len(bodies)))]
    for thread in threads:
        thread.start()
    while living := [thread for thread in threads if thread.is_alive()]:
        meanwhile()
        living[0].join(every)
        if time.monotonic() > until + PATIENCE:
            raise NotReady(f"{client.url}: a request was not answered in {PATIENCE:.0f} s")
    if errors:
        raise NotReady(f"{client.url}: {in_words(errors[0])}") from None  # type: ignore[arg-type]
    return found


def _answer(client: Client, body: Mapping[str, Any]) -> Any:
    try:
        return client.post("/generate", body)
    except RequestError as error:
        if error.asks_for_key:
            raise
        return f"refused: {_message(error.answer)}"


def _message(words: str) -> str:
    """Return the message of a refusal, without the JSON around it."""
    try:
        return str(json.loads(words[words.index("{") :])["error"]["message"])[:200]
    except (ValueError, KeyError, TypeError):
        return words[:200]
