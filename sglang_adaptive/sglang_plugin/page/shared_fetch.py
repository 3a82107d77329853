"""One look at the scheduler for everybody who asks within a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

SHARED_SECONDS = 1.0
"""An answer is given again until it was begun so long ago; a page asks a second after its last answer came."""
PATIENCE_SECONDS = 5.0


class SharedFetch:
    """Calls *fetch* at most once in *seconds*, never twice at a time, and only when somebody waits for it."""

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
        """Return what *fetch* gave within the last *seconds*.

        Raises what it raised, and TimeoutError after *patience* seconds. A call that takes longer is not given up
        but goes on for whoever asks next: a scheduler in a long prefill must not find a queue of questions after it.
        """
        now = self._clock()
        if self._task is None or (self._task.done() and now - self._begun >= self._seconds):
            self._begun = now
            self._task = asyncio.ensure_future(self._fetch())
        done, _ = await asyncio.wait([self._task], timeout=patience)
        if not done:
            raise TimeoutError
        return self._task.result()
