"""Start-up: seconds and memory of each runtime state, its graphs and the warm-up, and which rounds the warm-up runs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

# Warm-up rounds run all steps in turn, before a client sends requests.


MOST_ROUNDS = 20_000
"""Rounds after which a warm-up ends by itself."""


class WarmUp:
    """Counts rounds by batch size and steps; deterministic, so that tensor-parallel ranks agree."""

    def __init__(self, reachable: Callable[[int], Sequence[int]]) -> None:
        """*reachable* returns the steps that may run at a batch size, in the order to run them."""
        self._reachable = reachable
        self._counts: Counter[tuple[int, int]] = Counter()
        self.rounds = 0

    def choose(self, batch_size: int) -> int:
        """Return and count the steps that ran least at *batch_size*; ties go to the first."""
        steps = min(self._reachable(batch_size), key=lambda steps: self._counts[batch_size, steps])
        self._counts[batch_size, steps] += 1
        self.rounds += 1
        return steps

    @property
    def overdue(self) -> bool:
        """Whether the warm-up has exceeded MOST_ROUNDS."""
        return self.rounds >= MOST_ROUNDS

    def covered(self) -> list[int]:
        """Return the batch sizes at which all reachable steps have run, ascending."""
        seen = {batch_size for batch_size, _ in self._counts}
        return sorted(size for size in seen if all(self._counts[size, steps] for steps in self._reachable(size)))


PROGRESS_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class TierBuild:
    """Seconds, memory and graphs of one runtime state."""

    steps: int
    seconds: float | None
    """None for the launch steps, whose state SGLang builds."""

    gigabytes: float | None
    """Decrease of free device memory, in GB of 2**30 bytes."""

    graph_batch_sizes: tuple[int, ...] | None
    """Batch sizes with CUDA graphs, ascending; None when graphs are off."""


class Device:
    """Batch sizes to capture and free memory of a device; this base class captures all and reports no memory."""

    def graph_batch_sizes(self, passed: list[int] | None) -> list[int] | None:
        """Return every batch size with graphs, None when graphs are off; *passed* is SGLang's list."""
        return passed

    def sizes_to_capture(self, wanted: list[int] | None, every: list[int] | None) -> list[int] | None:
        """Return the sizes to capture, out of *every*, for steps that can be chosen at the sizes *wanted*."""
        return wanted

    def free_gigabytes(self) -> float | None:
        """Return the free device memory in GB of 2**30 bytes; None if unknown."""
        return None


@dataclass(slots=True)
class StartUp:
    """The report of start-up, filled while the server starts."""

    tiers: list[TierBuild] = field(default_factory=list)
    warm_up_seconds: float | None = None
    """Seconds from the first warm-up message to the last; None when there was none."""

    warm_up_rounds: int = 0
    warmed_batch_sizes: Sequence[int] = ()
    """Batch sizes at which all reachable steps have run, in the latest pass."""

    late_kernel_loads: list[str] | None = None
    """Names of the first Triton kernels that loaded after start-up; None if not watched."""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON builtins."""
        return {
            "tiers": [
                {
                    "steps": tier.steps,
                    "seconds": tier.seconds,
                    "gigabytes": tier.gigabytes,
                    "graph_batch_sizes": None if tier.graph_batch_sizes is None else list(tier.graph_batch_sizes),
                }
                for tier in sorted(self.tiers, key=lambda tier: tier.steps)
            ],
            "warm_up_seconds": self.warm_up_seconds,
            "warm_up_rounds": self.warm_up_rounds,
            "warmed_batch_sizes": list(self.warmed_batch_sizes),
            "late_kernel_loads": None if self.late_kernel_loads is None else list(self.late_kernel_loads),
        }


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
