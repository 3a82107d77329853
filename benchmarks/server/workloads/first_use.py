"""What the first use of a depth costs after start-up."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.server import passes
from benchmarks.server.load import Batch
from benchmarks.server.passes import Contender, PassFailed
from benchmarks.server.process import Declared
from benchmarks.server.workloads.plan import Clock, Note, Plan, Row

TOKENS = 300
P = 0.0
"""Nothing is accepted: both uses run the same rounds, and what they differ by is no luck of the draw."""


def first_use(contenders: Sequence[Contender], plan: Plan, clock: Clock, note: Note) -> Iterator[Row]:
    """First and second use of each depth at each batch size since the server started: whole requests, prefill and all.

    Nothing may have run on the server before, no warm-up either.
    """
    for batch in plan.batches:
        for contender in contenders:
            contender.server.process.declared = Declared(P, plan.decay)
            if not clock.has_time(f"first {batch}"):
                note(f"first use: out of time at batch {batch}")
                return
            both = [clock.timed(f"first {batch}", _whole_batch, contender, batch, TOKENS) for _ in range(2)]
            row = passes.row("first use", contender.name, {"batch_size": batch, "p": P, "tokens": TOKENS}, both)
            rates = [one["tokens_per_second"] for one in both]
            yield {**row, "first_over_second": rates[0] / rates[1]}


def _whole_batch(contender: Contender, requests: int, tokens: int) -> dict[str, Any]:
    process = contender.server.process
    contender.take_over()
    before, begin = process.read(), time.perf_counter()
    with Batch(contender.server.client, requests, tokens) as batch:
        batch.join()
        seconds = time.perf_counter() - begin
    if batch.error is not None:
        raise PassFailed(f"{contender.name}, batch {requests}: {batch.error}")
    return passes.whole(process, before, seconds)
