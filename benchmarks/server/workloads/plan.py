"""What every workload shares: the plan of a run, its time, and the contenders' turns."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from benchmarks.server.load import ClosedLoop, Declare
from benchmarks.server.passes import PATIENCE_SECONDS, POLL_SECONDS, Contender, PassFailed
from benchmarks.server.process import Declared

Row = dict[str, Any]
Note = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """The numbers of a run; every one can be given on the command line."""

    batches: tuple[int, ...] = (1, 8, 32, 64)
    p: tuple[float, ...] = (0.3, 0.6, 0.8, 0.9)
    decay: float = 1.0
    tokens: int = 192
    """Tokens a request generates in a pass of the cells."""

    repeats: int = 3
    phase_seconds: float = 1.2
    phases: int = 8
    concurrencies: tuple[int, ...] = (1, 64, 8, 32, 2, 64, 16, 4)
    load_p: float = 0.7
    request_tokens: int = 400
    """Tokens of a request that another one follows."""

    steady_seconds: float = 60.0
    open_seconds: float = 15.0
    shares: tuple[float, ...] = (0.3, 0.6, 0.9)
    capacity: float | None = None
    """Requests a second of the open loop's whole; None measures the first contender's."""

    compare_depths: tuple[int, ...] = (1, 3, 5)
    """Static depths beside the policy, where not every depth is measured."""


@dataclass
class Clock:
    """Says whether there is time for another step that takes as long as the longest one so far."""

    end: float
    longest: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def has_time(self, kind: str, at_least: float = 0.0) -> bool:
        """Return whether a step of *kind* would end before the budget does."""
        return time.monotonic() + max(at_least, 1.1 * self.longest[kind]) < self.end

    def timed(self, kind: str, step: Callable[..., T], *arguments: Any) -> T:
        """Return step(*arguments), remembering how long it took."""
        begin = time.monotonic()
        try:
            return step(*arguments)
        finally:
            self.longest[kind] = max(self.longest[kind], time.monotonic() - begin)


def in_turn(contenders: Sequence[Contender], repeat: int) -> Sequence[Contender]:
    """Return the contenders in order, and the other way round every second time, so that a drift falls on all alike."""
    return contenders[:: 1 if repeat % 2 == 0 else -1]


def own_p(seed: int, decay: float) -> Declare:
    """Return a function from a request's number to its own process."""
    return lambda number: Declared(random.Random(seed * 100_003 + number).uniform(0.2, 0.95), decay)


def until_decoding(contender: Contender, requests: int) -> None:
    """Wait until *requests* requests decode together."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    before = contender.server.process.read().rounds
    while True:
        now = contender.server.process.read()
        if now.rounds > before + 1 and now.batch_size >= requests:
            return
        if time.monotonic() > deadline:
            raise PassFailed(f"{contender.name}: {requests} requests never decoded together")
        time.sleep(POLL_SECONDS)


def raise_first(contender: Contender, loop: ClosedLoop) -> None:
    if loop.errors:
        raise PassFailed(f"{contender.name}: {len(loop.errors)} requests failed: {loop.errors[0]}")
