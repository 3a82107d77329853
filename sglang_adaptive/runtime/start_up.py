"""Start-up: seconds and memory of each runtime state, its graphs, and which rounds the warm-up runs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from sglang_adaptive.policy.choice import Choice

# Warm-up rounds run all kinds of rounds in turn, before a client sends requests.


MOST_ROUNDS = 20_000
"""Rounds after which a pass of the warm-up ends by itself."""


class WarmUp:
    """Runs passes over all kinds of rounds; deterministic, so that tensor-parallel ranks agree."""

    def __init__(self, reachable: Callable[[int], Sequence[Choice]]) -> None:
        """*reachable* returns what a round of a batch size may do, in the order to run it."""
        self._reachable = reachable
        self._counts: Counter[tuple[int, Choice]] = Counter()
        """Rounds of the latest pass."""
        self._begun: float | None = None
        self.runs = False
        self.rounds = 0
        """Rounds of all passes."""
        self.seconds: float | None = None
        """Seconds from the beginning of the first pass to the end of the latest; None before it."""

    def begin(self) -> None:
        """Begin another pass."""
        if self._begun is None:
            self._begun = time.perf_counter()
        self._counts.clear()
        self.runs = True

    def end(self) -> None:
        """End the pass that runs."""
        assert self._begun is not None
        self.runs, self.seconds = False, time.perf_counter() - self._begun

    def choose(self, batch_size: int) -> Choice:
        """Return and count what ran least at *batch_size*; ties go to the first."""
        choice = min(self._reachable(batch_size), key=lambda choice: self._counts[batch_size, choice])
        self._counts[batch_size, choice] += 1
        self.rounds += 1
        return choice

    @property
    def overdue(self) -> bool:
        """Whether the pass has exceeded MOST_ROUNDS."""
        return self._counts.total() >= MOST_ROUNDS

    def covered(self) -> list[int]:
        """Return the batch sizes at which all that is reachable ran in the latest pass, ascending."""
        seen = {batch_size for batch_size, _ in self._counts}
        return sorted(size for size in seen if all(self._counts[size, choice] for choice in self._reachable(size)))

    def as_dict(self) -> dict[str, Any]:
        """Return JSON builtins."""
        return {
            "warm_up_seconds": self.seconds,
            "warm_up_rounds": self.rounds,
            "warmed_batch_sizes": self.covered(),
        }


PROGRESS_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class TierBuild:
    """Seconds, memory and graphs of one runtime state."""

    steps: int
    seconds: float | None
    """None for the launch steps, whose state SGLang builds."""
    gigabytes: float | None
    """Decrease of free device memory, in GB of 2**30 bytes."""
    graph_batch_sizes: list[int] | None
    """Batch sizes with CUDA graphs, ascending; None when graphs are off."""


class Device:
    """Batch sizes to capture and free memory of a device; this base class has no graphs and reports no memory."""

    def graph_batch_sizes(self) -> list[int] | None:
        """Return every batch size with graphs, None when graphs are off."""
        return None

    def sizes_to_capture(self, wanted: list[int] | None, every: list[int] | None) -> list[int] | None:
        """Return the sizes to capture, out of *every*, for steps that can be chosen at the sizes *wanted*."""
        return wanted

    def free_gigabytes(self) -> float | None:
        """Return the free device memory in GB of 2**30 bytes; None if unknown."""
        return None


class Progress:
    """Reports every ten seconds what start-up is doing, from its own thread; a context manager."""

    def __init__(self, say: Callable[[str], None], seconds: float = PROGRESS_SECONDS) -> None:
        """*say* gets a line such as "warm-up: batch size 16, 8 of 12; 21 s"."""
        self._say = say
        self._seconds = seconds
        self._now = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="start-up progress", daemon=True)

    def now(self, what: str) -> None:
        """Set what start-up is doing from now on."""
        self._now = what

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        begun = time.perf_counter()
        while not self._ended.wait(self._seconds):
            self._say(f"{self._now}; {time.perf_counter() - begun:.0f} s")
