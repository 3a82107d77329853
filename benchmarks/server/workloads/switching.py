"""Load that changes: acceptance, or concurrency, in phases of a second or so."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.server import passes
from benchmarks.server.load import ClosedLoop
from benchmarks.server.passes import Contender
from benchmarks.server.process import Declared
from benchmarks.server.workloads.plan import Clock, Note, Plan, Row, in_turn, raise_first, until_decoding

Phase = tuple[Declared, int | None]
"""Acceptance, and the concurrency to change to, None for no change."""


def acceptance_switching(contenders: Sequence[Contender], plan: Plan, clock: Clock, note: Note) -> Iterator[Row]:
    """p 0.3 and 0.9 in turn while a closed loop decodes on: ``phases`` phases of ``phase_seconds``."""
    script = [(Declared(0.9 if phase % 2 else 0.3, plan.decay), None) for phase in range(plan.phases)]
    for batch in plan.batches:
        case = {"batch_size": batch, "p": "0.3, 0.9", "phases": plan.phases, "phase_seconds": plan.phase_seconds}
        yield from _switching("acceptance", contenders, plan, clock, note, script, batch, case)


def load_switching(contenders: Sequence[Contender], plan: Plan, clock: Clock, note: Note) -> Iterator[Row]:
    """Concurrency 1, 64, 8, 32, ... in a closed loop at one p."""
    declared = Declared(plan.load_p, plan.decay)
    script = [(declared, concurrency) for concurrency in plan.concurrencies]
    case = {"concurrency": list(plan.concurrencies), "p": plan.load_p, "phase_seconds": plan.phase_seconds}
    yield from _switching("load", contenders, plan, clock, note, script, plan.concurrencies[0], case)


def _switching(
    workload: str,
    contenders: Sequence[Contender],
    plan: Plan,
    clock: Clock,
    note: Note,
    script: Sequence[Phase],
    concurrency: int,
    case: dict[str, Any],
) -> Iterator[Row]:
    taken: dict[str, list[dict[str, Any]]] = defaultdict(list)
    kind = f"{workload} {concurrency}"
    for repeat in range(plan.repeats):
        for contender in in_turn(contenders, repeat):
            if not clock.has_time(kind, len(script) * plan.phase_seconds + 3):
                note(f"{workload}: out of time in repeat {repeat + 1}")
                return
            one = clock.timed(kind, _play, contender, plan, script, concurrency)
            taken[contender.name].append(one)
            yield passes.row(workload, contender.name, case, taken[contender.name])


def _play(contender: Contender, plan: Plan, script: Sequence[Phase], concurrency: int) -> dict[str, Any]:
    """Play the phases once over; figures of the whole, and tokens/s of every phase."""
    process = contender.server.process
    contender.take_over()
    process.declared = script[0][0]
    with ClosedLoop(contender.server.client, concurrency, plan.request_tokens) as loop:
        until_decoding(contender, concurrency)
        begin, first = time.perf_counter(), process.read()
        rates, before, at = [], first, begin
        for index, (declared, wanted) in enumerate(script):
            process.declared = declared
            if wanted is not None:
                loop.resize(wanted)
            time.sleep(max(0.0, begin + (index + 1) * plan.phase_seconds - time.perf_counter()))
            now, after = time.perf_counter(), process.read()
            rates.append((after - before).expected / (now - at))
            before, at = after, now
        figures = passes.whole(process, first, at - begin)
    raise_first(contender, loop)
    return {**figures, "phases": rates}
