"""Open loop: Poisson arrivals, and what a reader waits for."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.server import passes
from benchmarks.server.load import Answer, ClosedLoop, poisson
from benchmarks.server.numbers import percentiles
from benchmarks.server.passes import Contender, PassFailed
from benchmarks.server.workloads.plan import Clock, Note, Plan, Row, in_turn, own_p, raise_first, until_decoding


def open_loop(contenders: Sequence[Contender], plan: Plan, clock: Clock, note: Note) -> Iterator[Row]:
    """Poisson arrivals at shares of what the first contender can serve; the same arrivals for everyone."""
    top = max(plan.batches)
    capacity = plan.capacity or _capacity(contenders[0], plan, top)
    taken: dict[tuple[float, str], list[dict[str, Any]]] = defaultdict(list)
    for repeat in range(plan.repeats):
        for share in plan.shares:
            for contender in in_turn(contenders, repeat):
                if not clock.has_time(f"open {share}", 1.3 * plan.open_seconds):
                    note(f"open loop: out of time in repeat {repeat + 1}, {share:.0%} of capacity")
                    return
                rate = share * capacity
                one = clock.timed(f"open {share}", _arrivals, contender, plan, rate, repeat)
                taken[share, contender.name].append(one)
                case = {"share": share, "requests_per_second": rate, "capacity_of": contenders[0].name}
                yield passes.row("open loop", contender.name, case, taken[share, contender.name])


def _capacity(contender: Contender, plan: Plan, concurrency: int) -> float:
    """Return requests a second in a closed loop of *concurrency* requests, each with its own p."""
    contender.take_over()
    seconds = max(4.0, plan.open_seconds / 3)
    declare = own_p(1, plan.decay)
    with ClosedLoop(contender.server.client, concurrency, plan.request_tokens, declare=declare) as loop:
        until_decoding(contender, concurrency)
        before = contender.server.process.read()
        begin = time.perf_counter()
        time.sleep(seconds)
        counted = contender.server.process.read() - before
        tokens_per_second = counted.tokens / (time.perf_counter() - begin)
    raise_first(contender, loop)
    return tokens_per_second / plan.request_tokens


def _arrivals(contender: Contender, plan: Plan, rate: float, seed: int) -> dict[str, Any]:
    process = contender.server.process
    contender.take_over()
    before, begin = process.read(), time.perf_counter()
    answers = poisson(contender.server.client, rate, plan.open_seconds, plan.request_tokens, own_p(1, plan.decay), seed)
    figures = passes.whole(process, before, time.perf_counter() - begin)
    failed = [answer.failed for answer in answers if answer.failed]
    if failed:
        raise PassFailed(f"{contender.name}: {len(failed)} of {len(answers)} requests failed: {failed[0]}")
    return {**figures, "requests": len(answers), **latencies(answers)}


def latencies(answers: Sequence[Answer]) -> dict[str, Any]:
    return {
        "time_to_first_token": percentiles([answer.time_to_first_token for answer in answers]),
        "inter_token_latency": percentiles([gap for answer in answers for gap in answer.inter_token_latencies()]),
        "latency": percentiles([answer.latency for answer in answers]),
    }
