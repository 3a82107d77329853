"""Play a policy on a trace, round by round, in the order in which a server with overlap scheduling does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.runtime.round_clock import RoundClock
from sglang_adaptive.simulate.errors import SimulationError
from sglang_adaptive.simulate.population import IntArray
from sglang_adaptive.simulate.trace import Trace

SYNC_ROUNDS = 32
"""Rounds between two hand-overs of the measured cost table, for a policy that has ``export_cost``."""


class Drivable(Protocol):
    """The two methods that SGLang's own policy has; ``observe`` replaces the second one where it exists."""

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Return the depth of the round about to start."""

    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> int | None:
        """Learn from the round whose result has just arrived."""


@dataclass(frozen=True, eq=False)
class Run:
    """What a policy did on a trace."""

    depths: IntArray
    """Draft steps of each round."""


def play(policy: Drivable, trace: Trace) -> Run:
    """Drive *policy* through *trace*.

    The depth of round ``t`` is asked for while round ``t - 1`` is still running: its result has not arrived,
    so the newest round that a decision can know is ``t - 2``.

    Raises:
        SimulationError: the policy asked for a depth outside the trace's ladder.
    """
    learn = _learner(policy, trace)
    sync = _synchroniser(policy)
    allowed = frozenset(trace.ladder)
    batches = trace.batch.tolist()
    depths: list[int] = []
    for now, batch in enumerate(batches):
        steps = policy.get_steps_for_batch(batch)
        if steps not in allowed:
            raise SimulationError(
                f"round {now}: the policy chose {steps} steps, outside the ladder {trace.ladder}"
            )
        depths.append(steps)
        if now:
            learn(now - 1, batches[now - 1], depths)
        if sync is not None and now % SYNC_ROUNDS == SYNC_ROUNDS - 1:
            sync()
    return Run(np.array(depths, dtype=np.int64))


def _learner(policy: Any, trace: Trace) -> Callable[[int, int, list[int]], None]:
    """Return the call that hands a round's result to the policy, its time read by the server's own clock."""
    accepted = trace.accepted.tolist()
    observe = getattr(policy, "observe", None)

    def counts(index: int, batch: int, steps: int) -> list[int]:
        return [k if k < steps else steps for k in accepted[index][:batch]]

    def learn_plain(index: int, batch: int, depths: list[int]) -> None:
        policy.on_verify_complete(counts(index, batch, depths[index]), batch)

    if observe is None:
        return learn_plain
    arrival = 0.0
    clock = RoundClock(lambda: arrival)
    seconds, noise, comparable = trace.seconds, trace.clock.tolist(), trace.comparable.tolist()

    def learn_rich(index: int, batch: int, depths: list[int]) -> None:
        nonlocal arrival
        steps = depths[index]
        arrival += float(seconds[index, steps]) * noise[index]
        if not comparable[index]:
            clock.interrupt()
        observe(RoundObservation(steps, counts(index, batch, steps), batch, clock.read(steps, batch)))

    return learn_rich


def _synchroniser(policy: Any) -> Callable[[], None] | None:
    """Return the call that makes pending clock readings effective, as rank 0's broadcast does on a server."""
    if not hasattr(policy, "export_cost"):
        return None
    return lambda: policy.import_cost(policy.export_cost())
