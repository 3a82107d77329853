"""Shares one answer of the scheduler among all requests within a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

SHARED_SECONDS = 1.0
"""Seconds from the begin of a fetch for which its answer is shared; a page asks one second after its last answer."""
PATIENCE_SECONDS = 5.0


class SharedFetch:
    """Calls *fetch* at most once in *seconds*, never twice at a time, and only on request."""

    def __init__(
        self,
        fetch: Callable[[], Awaitable[bytes]],
        clock: Callable[[], float] = time.monotonic,
        seconds: float = SHARED_SECONDS,
    ) -> None:
        self._fetch, self._clock, self._seconds = fetch, clock, seconds
        self._task: asyncio.Future[bytes] | None = None
        self._begun = 0.0

    async def latest(self, patience: float = PATIENCE_SECONDS) -> bytes:
        """Return the result of a *fetch* that began within the last *seconds*.

        Raises its error, or TimeoutError after *patience* seconds. A call that takes longer keeps running for the next
        request, so that no queue of requests waits for a scheduler in a long prefill.
        """
        now = self._clock()
        if self._task is None or (self._task.done() and now - self._begun >= self._seconds):
            self._begun = now
            self._task = asyncio.ensure_future(self._fetch())
        done, _ = await asyncio.wait([self._task], timeout=patience)
        if not done:
            raise TimeoutError
        return self._task.result()
