"""One pass: what a contender decoded in a stretch of rounds, and several passes of one case as a row of the result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from benchmarks.server.load import Batch, Declare
from benchmarks.server.numbers import percentile, spread
from benchmarks.server.process import Counted, Process
from benchmarks.server.servers import Running

POLL_SECONDS = 0.002
PATIENCE_SECONDS = 90.0


class PassFailed(RuntimeError):
    """A pass gave nothing to measure; the message is one line."""


@dataclass(frozen=True)
class Contender:
    """A policy's server, or one depth of it."""

    server: Running
    steps: int | None = None
    """The depth that is held; None lets the policy decide."""

    @property
    def name(self) -> str:
        """``static-3`` where a depth is held: that is what it stands for."""
        return self.server.name if self.steps is None else f"static-{self.steps}"

    @property
    def knows_p(self) -> bool:
        """Whether acceptance makes any difference to it."""
        return self.server.policy.speculate and self.steps != 0

    def take_over(self) -> None:
        """Hold or release the depth, before a pass."""
        if self.server.policy.ours:
            self.server.force(self.steps)


def batch_pass(contender: Contender, requests: int, tokens: int, declare: Declare | None = None) -> dict[str, Any]:
    """Decode *requests* requests of *tokens* tokens together; measure the rounds while all of them run.

    The pass ends with the first request that finishes, so prefill and drain are not in it, and every contender covers
    the same context lengths. Raises PassFailed.
    """
    process = contender.server.process
    contender.take_over()
    process.full_batch = requests
    before = process.read()
    with Batch(contender.server.client, requests, tokens, declare) as batch:
        _until_first_finishes(batch, process, before, requests)
    if batch.error is not None:
        raise PassFailed(f"{contender.name}, batch {requests}: {batch.error}")
    return steady(process, before, f"{contender.name}, batch {requests}")


def steady(process: Process, before: Counted, what: str) -> dict[str, Any]:
    """Return the figures of the steady rounds since *before*. Raises PassFailed when there are fewer than three."""
    counted = process.read() - before
    if counted.steady_rounds < 3:
        raise PassFailed(f"{what}: only {counted.steady_rounds:.0f} rounds at the full batch")
    times = process.round_seconds(before)
    requests = counted.steady_rounds * process.full_batch
    return {
        "tokens_per_second": counted.steady_expected / counted.steady_seconds,
        "observed_tokens_per_second": counted.steady_tokens / counted.steady_seconds,
        "accept_length": counted.steady_tokens / requests,
        "expected_accept_length": counted.steady_expected / requests,
        "rounds": int(counted.steady_rounds),
        "seconds": counted.steady_seconds,
        "round_ms": {
            "p5": 1000 * percentile(times, 5),  # a pass may have faster stretches, which no median shows
            "median": 1000 * median(times),
            "p95": 1000 * percentile(times, 95),
        },
        "depths": counted.depths(),
        "switches": int(counted.switches),
    }


def whole(process: Process, before: Counted, seconds: float) -> dict[str, Any]:
    """Return the figures of every round since *before*, prefills and all, in *seconds* of wall time."""
    counted = process.read() - before
    if not counted.rounds:
        raise PassFailed("no round was decoded")
    return {
        "tokens_per_second": counted.expected / seconds,
        "observed_tokens_per_second": counted.tokens / seconds,
        "accept_length": counted.tokens / counted.requests,
        "rounds": int(counted.rounds),
        "seconds": seconds,
        "depths": counted.depths(),
        "switches": int(counted.switches),
    }


def row(workload: str, contender: str, case: dict[str, Any], passes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a row of the result: the mean over its passes, and how far they lie apart."""
    rates = [one["tokens_per_second"] for one in passes]
    return {
        "workload": workload,
        "contender": contender,
        "case": case,
        "tokens_per_second": fmean(rates),
        "spread": spread(rates),
        "rounds": sum(one["rounds"] for one in passes),
        "seconds": sum(one["seconds"] for one in passes),
        "passes": list(passes),
    }


def _until_first_finishes(batch: Batch, process: Process, before: Counted, requests: int) -> None:
    """Return when the batch was full and no longer is, or every request was answered."""
    full, deadline = False, time.monotonic() + PATIENCE_SECONDS
    while batch.is_running():
        now = process.read()
        started = now.rounds > before.rounds
        if started and full and now.batch_size < requests:
            return
        full = full or (started and now.batch_size == requests)
        if time.monotonic() > deadline:
            raise PassFailed(f"{requests} requests were not decoded within {PATIENCE_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)
