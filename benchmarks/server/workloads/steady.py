"""Long steady load: how calm the policy is, and what that does to a reader's tokens."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from benchmarks.server import passes
from benchmarks.server.load import ClosedLoop
from benchmarks.server.passes import Contender
from benchmarks.server.process import Declared
from benchmarks.server.workloads.open_loop import latencies
from benchmarks.server.workloads.plan import Clock, Note, Plan, Row, raise_first, until_decoding

BATCHES = (8, 32)
P = 0.7
SETTLE_SECONDS = 60.0
"""Left out of the switches an hour: a batch size is new to the policy, and has to be learnt."""


def steady_load(contenders: Sequence[Contender], plan: Plan, clock: Clock, note: Note) -> Iterator[Row]:
    """Switches an hour in a long closed loop at one p, and inter-token latency against the depth that was used most.

    The first SETTLE_SECONDS, or half of a run that is shorter than twice that, do not count towards the switches an
    hour; ``switches`` of the pass has all.
    """
    for contender in [contender for contender in contenders if contender.steps is None]:
        for batch in [batch for batch in BATCHES if batch in plan.batches] or plan.batches[:1]:
            if not clock.has_time("steady", plan.steady_seconds + 3):
                note("steady: out of time")
                return
            settle = min(SETTLE_SECONDS, plan.steady_seconds / 2)
            first = clock.timed("steady", _stream, contender, plan, batch, plan.steady_seconds, settle)
            case = {"batch_size": batch, "p": P, "decay": plan.decay}
            row = passes.row("steady", contender.name, case, [first])
            later = first["seconds"] - settle
            row |= {"settled_seconds": later, "switches_per_hour": first["settled_switches"] / later * 3600}
            if contender.server.policy.ours:
                row |= _against_static(contender, plan, clock, batch)
            yield row


def _against_static(contender: Contender, plan: Plan, clock: Clock, batch: int) -> dict[str, Any]:
    """Return the ratio of the ITL's p95 to that of a static depth, in two short turns of the policy.

    After each the depth that it used most in that turn is held: where two are nearly as good, turns may differ.
    """
    seconds = min(10.0, plan.steady_seconds)
    free, held, depths = [], [], []
    for _ in range(2):
        if not clock.has_time("latency", 2 * (seconds + 3)):
            break
        turn = clock.timed("latency", _stream, contender, plan, batch, seconds)
        depths.append(int(max(turn["depths"], key=turn["depths"].get)))
        static = clock.timed("latency", _stream, Contender(contender.server, depths[-1]), plan, batch, seconds)
        free.append(turn["inter_token_latency"]["p95_ms"])
        held.append(static["inter_token_latency"]["p95_ms"])
    if not free:
        return {}
    p95 = {"itl_p95_ms_free": fmean(free), "itl_p95_ms_held": fmean(held)}
    return {**p95, "held_steps": depths, "itl_p95_against_static": sum(free) / sum(held)}


def _stream(contender: Contender, plan: Plan, batch: int, seconds: float, settle: float = 0.0) -> dict[str, Any]:
    """Stream for *seconds*; ``settled_switches`` are those after the first *settle* of them."""
    process = contender.server.process
    contender.take_over()
    process.declared, process.full_batch = Declared(P, plan.decay), batch
    with ClosedLoop(contender.server.client, batch, plan.request_tokens, stream=True) as loop:
        until_decoding(contender, batch)
        time.sleep(min(1.0, seconds / 10))  # the policy has to see a change of p
        before, begin = process.read(), time.perf_counter()
        time.sleep(settle)
        settled = process.read()
        time.sleep(seconds - settle)
        figures = passes.whole(process, before, time.perf_counter() - begin)
        later = process.read() - settled
        answers = list(loop.answers)
    raise_first(contender, loop)
    return {**figures, "settled_switches": int(later.switches), **latencies(answers)}
