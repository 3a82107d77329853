"""Stationary load: every batch size by every p, and batches whose requests differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.server import passes
from benchmarks.server.passes import Contender
from benchmarks.server.process import Declared
from benchmarks.server.workloads.plan import Clock, Note, Plan, Row, in_turn, own_p


def warm_up(contenders: Sequence[Contender], plan: Plan) -> None:
    """Run every contender briefly at every batch size: first uses load kernels, which is measured elsewhere."""
    for batch in plan.batches:
        for contender in contenders:
            contender.server.process.declared = Declared(0.6)
            passes.batch_pass(contender, batch, 48)


def cells(contenders: Sequence[Contender], plan: Plan, clock: Clock, note: Note) -> Iterator[Row]:
    """Stationary: every batch size by every p, and p = 0. Contenders that p does not touch run once a batch size."""
    taken: dict[tuple[int, float | None, str], list[dict[str, Any]]] = defaultdict(list)
    for repeat in range(plan.repeats):
        for batch in plan.batches:
            for p, turn in _turns(contenders, (*plan.p, 0.0), repeat):
                for contender in turn:
                    if not clock.has_time(f"cell {batch}"):
                        note(f"cells: out of time in repeat {repeat + 1}, batch {batch}")
                        return
                    contender.server.process.declared = Declared(p or 0.0, plan.decay)
                    one = clock.timed(f"cell {batch}", passes.batch_pass, contender, batch, plan.tokens)
                    taken[batch, p, contender.name].append({**one, "repeat": repeat})
                    case = {"batch_size": batch, "p": p, "decay": plan.decay}
                    yield passes.row("cells", contender.name, case, taken[batch, p, contender.name])


def _turns(
    contenders: Sequence[Contender], ps: Sequence[float], repeat: int
) -> Iterator[tuple[float | None, list[Contender]]]:
    """Yield p and its contenders in turn: first those that p does not touch, as p None, and last when turned round."""
    order = 1 if repeat % 2 == 0 else -1
    blind = [contender for contender in contenders if not contender.knows_p]
    seeing = [contender for contender in contenders if contender.knows_p]
    turns: list[tuple[float | None, list[Contender]]] = [(None, blind), *((p, seeing) for p in ps)]
    yield from ((p, turn[::order]) for p, turn in turns[::order])


def heterogeneous(contenders: Sequence[Contender], plan: Plan, clock: Clock, note: Note) -> Iterator[Row]:
    """Stationary batches whose requests each have their own p, uniform in 0.2 to 0.95, the same for everyone."""
    taken: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for repeat in range(plan.repeats):
        for batch in [batch for batch in plan.batches if batch > 1]:
            declare = own_p(seed=repeat * 1000 + batch, decay=plan.decay)
            for contender in in_turn(contenders, repeat):
                if not clock.has_time(f"heterogeneous {batch}"):
                    note(f"heterogeneous: out of time in repeat {repeat + 1}, batch {batch}")
                    return
                kind = f"heterogeneous {batch}"
                one = clock.timed(kind, passes.batch_pass, contender, batch, plan.tokens, declare)
                taken[batch, contender.name].append(one)
                case = {"batch_size": batch, "p": "uniform 0.2..0.95 a request", "decay": plan.decay}
                yield passes.row("heterogeneous", contender.name, case, taken[batch, contender.name])
