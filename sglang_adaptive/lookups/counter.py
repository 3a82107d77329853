"""Counts how many lookup drafts would have been accepted in finished requests, outside the serving thread."""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from sglang_adaptive.lookups.lookup import Text
from sglang_adaptive.lookups.tally import ROWS, Tally, worth
from sglang_adaptive.policy.base import AdaptivePolicy

logger = logging.getLogger(__name__)

SHARE = 0.05
"""Share of one core that counting may use: a pause 19 times as long follows each request."""
MOST_WAITING = 1 << 20
"""Tokens that may wait to be counted, 8 MB. While more wait, finished requests are left out, whatever their length."""
LONGEST_TEXT = 1 << 17
"""Tokens of a request that are examined; of a longer prompt, the last ones."""


class LookupCounter:
    """Looks up the text of each finished request in its own thread; the first error ends the counting."""

    def __init__(self, told: Callable[[Tally], None] = lambda tally: None) -> None:
        """*told* gets the tally of each request, in the thread."""
        self.error: str | None = None
        """The error that ended the counting."""
        self.left_out = 0
        """Requests that finished while too many tokens waited."""
        self.tally = Tally()
        self._told = told
        self._waiting: SimpleQueue[tuple[array[int], array[int]] | None] = SimpleQueue()
        self._over = threading.Event()
        # Only one thread writes each number.
        self._added = self._done = 0
        self._seconds, self._read = 0.0, 0
        self._thread = threading.Thread(target=self._run, name="lookup-counter", daemon=True)
        self._thread.start()

    def add(self, prompt: array[int], output: array[int]) -> None:
        """Count a finished request; takes a microsecond. The arrays must not change afterward."""
        if self.error is not None or len(output) < 2:
            return
        if self._added - self._done > MOST_WAITING:
            self.left_out += 1
            return
        self._added += len(prompt) + len(output)
        self._waiting.put((prompt, output))

    def close(self) -> None:
        """Count the waiting requests without pauses, and end."""
        self._over.set()
        self._waiting.put(None)
        self._thread.join()

    def report(self, policy: AdaptivePolicy | None, by_position: Sequence[Mapping[str, int]]) -> dict[str, Any]:
        """Return the counts as JSON builtins; docs/json.md lists them. Without waiting tokens they are complete.

        *policy* prices them if it can; *by_position* is the acceptance of its drafts, as from
        ``Counters.by_position``.
        """
        waiting = self._added - self._done  # before the tally, which the other thread may complete meanwhile
        tally = self.tally
        return {
            **tally.as_dict(),
            "left_out": self.left_out,
            "tokens_waiting": waiting,
            "error": self.error,
            "seconds_per_token": self._seconds / self._read if self._read else None,
            "worth": None if policy is None else _priced(tally, policy, by_position),
        }

    def _run(self) -> None:
        try:
            while (request := self._waiting.get()) is not None:
                begin = time.perf_counter()
                self._count(*request)
                self._over.wait((time.perf_counter() - begin) * (1.0 / SHARE - 1.0))
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            logger.exception("adaptive: disabled lookup-counter after an error; the server goes on without it")

    def _count(self, prompt: array[int], output: array[int]) -> None:
        begin = time.thread_time()
        kept = prompt[max(0, len(prompt) + len(output) - LONGEST_TEXT) :]
        text = Text(np.concatenate((kept, output[:LONGEST_TEXT])), len(kept))
        found = Tally.of(text.rounds())
        self.tally += found
        self._told(found)
        self._read += len(text)
        self._seconds += time.thread_time() - begin
        self._done += len(prompt) + len(output)


def _priced(tally: Tally, policy: AdaptivePolicy, by_position: Sequence[Mapping[str, int]]) -> dict[str, Any] | None:
    """Return the gain from lookups at *policy*'s round times; None if it has no time without drafts.

    A lookup round is assumed to take as long as a round of ROWS requests without drafts, which verifies as many tokens.
    """
    alone, wide = policy.prices(1, 0), policy.prices(ROWS, 0)
    if alone is None or wide is None or 0 not in wide.seconds:
        return None
    tokens = [1.0]
    reach = 1.0
    for position in by_position:
        reach *= position["accepted"] / position["reached"] if position["reached"] else 0.0
        tokens.append(tokens[-1] + reach)
    seconds = {steps: taken for steps, taken in alone.seconds.items() if steps < len(tokens)}
    return worth(tally, seconds, tokens, wide.seconds[0])
