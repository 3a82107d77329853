"""What a change of steps costs: rounds that change them every time, beside rounds that keep either."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from benchmarks.server import passes
from benchmarks.server.passes import Contender
from benchmarks.server.process import Declared
from benchmarks.server.workloads.plan import Clock, Note, Plan, Row

P = 0.0
"""Nothing is accepted, so that the same rounds serve the same tokens at any steps."""


def switch_cost(contenders: Sequence[Contender], plan: Plan, clock: Clock, note: Note) -> Iterator[Row]:
    """Each pair of neighbouring held depths: one, the other, and both in turn, a change before every round.

    A row's ``switch_ms`` is the mean round of both in turn less the mean of the two held; ``switch_rounds`` is that
    over the latter.
    """
    held = sorted((one for one in contenders if one.steps), key=lambda one: one.steps or 0)
    for repeat in range(plan.repeats):
        for batch in plan.batches:
            for few, many in pairwise(held):
                if not clock.has_time(f"switch {batch}", at_least=1.0):
                    note(f"switch cost: out of time in repeat {repeat + 1}, batch {batch}")
                    return
                found = clock.timed(f"switch {batch}", _three, few, many, batch, plan, repeat)
                case = {"batch_size": batch, "p": P, "repeat": repeat}
                yield _row(few, many, case, *found)


def _three(few: Contender, many: Contender, batch: int, plan: Plan, repeat: int) -> list[dict[str, Any]]:
    process = few.server.process
    process.declared = Declared(P, plan.decay)
    turns: list[tuple[int, Contender, int | None]] = [(0, few, None), (1, few, many.steps), (2, many, None)]
    found: dict[int, dict[str, Any]] = {}
    for place, contender, other in turns[:: 1 if repeat % 2 == 0 else -1]:
        process.other_steps = other
        try:
            found[place] = passes.batch_pass(contender, batch, plan.tokens)
        finally:
            process.other_steps = None
    return [found[place] for place in sorted(found)]


def _row(
    few: Contender, many: Contender, case: dict[str, Any], one: dict[str, Any], both: dict[str, Any],
    other: dict[str, Any],
) -> Row:  # fmt: skip
    mean = fmean([_round(one), _round(other)])
    told = f"{few.name} and {many.steps}"
    costs = {"switch_ms": 1000 * (_round(both) - mean), "switch_rounds": _round(both) / mean - 1.0}
    return {**passes.row("switch-cost", told, case, [one, both, other]), **costs}


def _round(one: dict[str, Any]) -> float:
    """Return the mean seconds of a round."""
    return float(one["seconds"] / one["rounds"])
