"""Play a policy on a trace, round by round, in the order in which a server with overlap scheduling does."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np

from sglang_adaptive.lab.simulate.cost import SimulationError
from sglang_adaptive.lab.simulate.trace import IntArray, Trace
from sglang_adaptive.policy.config import load_config
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.runtime.pending_drafts import rounds_between_outputs
from sglang_adaptive.runtime.round_times import RoundClock


class Drivable(Protocol):
    """The two methods that SGLang's own policy has; ``observe`` replaces the second one where it exists.

    A policy with ``learns = False`` is spared the results.
    """

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
        SimulationError: the policy asked for a depth outside the trace's ladder, or for one without a CUDA graph
            at that batch size although it has graphs.
    """
    learn = _learner(policy, trace) if getattr(policy, "learns", True) else None
    runnable = captured_steps(policy, trace.ladder)
    batches = trace.batch.tolist()
    depths: list[int] = []
    for now, batch in enumerate(batches):
        steps = policy.get_steps_for_batch(batch)
        if steps not in runnable(batch):
            raise SimulationError(
                f"round {now}: the policy chose {steps} steps at batch {batch}; it can run {sorted(runnable(batch))}"
            )
        depths.append(steps)
        if now and learn is not None:
            learn(now - 1, batches[now - 1], depths)
        if getattr(policy, "cost_sync_due", False):
            hand_over_cost(policy)
    return Run(np.array(depths, dtype=np.int64))


class DraftOutputs:
    """When the draft's extend has an output at zero steps, where *every* rounds are held; the next round checks it."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._since = 0
        """Zero-step rounds since the last output."""
        self._output = False
        """Whether the round before had one."""

    @property
    def extended(self) -> bool:
        """Whether the latest round had an output, and so ends a cycle of zero-step rounds."""
        return self._output

    def check(self, steps: int, requests: int, curious: bool, looked_up: bool = False) -> bool:
        """Take in a round of *steps*; say whether it checks what was foretold: zero steps, after an output.

        A round of drafts that were *looked_up* has an output as well.
        """
        told, self._since = self._output and not steps, 0 if steps else self._since + 1
        self._output = looked_up or self._since >= rounds_between_outputs(requests, self._every, curious)
        if self._output:
            self._since = 0
        return told


def captured_steps(policy: Any, ladder: tuple[int, ...]) -> Callable[[int], frozenset[int]]:
    """Return what tells the depths that can run at a batch size: those captured for it when the server starts."""
    every = frozenset(ladder)
    graphs_of = getattr(policy, "cuda_graph_bs_for_step", lambda steps: None)
    captured = {steps: graphs_of(steps) for steps in ladder}
    sizes = sorted({size for found in captured.values() for size in found or ()})

    @cache
    def runnable(batch: int) -> frozenset[int]:
        at = bisect_left(sizes, batch)
        if at == len(sizes):  # no graphs, or a batch beyond the largest: the round runs without one
            return every
        return frozenset(steps for steps, found in captured.items() if found is None or sizes[at] in found)

    return runnable


def _learner(policy: Any, trace: Trace) -> Callable[[int, int, list[int]], None]:
    """Return the call that hands a round's result to the policy, its time read by the server's own clock."""
    accepted = trace.accepted_lists
    observe = getattr(policy, "observe", None)

    def counts(index: int, steps: int) -> list[int]:
        return [k if k < steps else steps for k in accepted[index]]

    def learn_plain(index: int, batch: int, depths: list[int]) -> None:
        policy.on_verify_complete(counts(index, depths[index]), batch)

    if observe is None:
        return learn_plain
    arrival, outputs = 0.0, DraftOutputs(load_config().zero_step_extend_every)
    clock = RoundClock(lambda: arrival)
    seconds, noise, comparable = trace.seconds, trace.clock.tolist(), trace.comparable.tolist()

    def foretold(index: int, steps: int, batch: int) -> list[int]:
        """Return which first drafts would have been accepted, in a zero-step round after an output of the draft."""
        told = outputs.check(steps, batch, getattr(policy, "wants_shadow_drafts", False))
        return [min(k, 1) for k in accepted[index]] if told else []

    def learn_rich(index: int, batch: int, depths: list[int]) -> None:
        nonlocal arrival
        steps = depths[index]
        arrival += float(seconds[index, steps]) * noise[index]
        if not comparable[index]:
            clock.interrupt()
        heard = foretold(index, steps, batch)
        taken = clock.read(steps, batch)
        extended = outputs.extended
        observe(RoundObservation(steps, counts(index, steps), batch, taken, shadow_accepts=heard, extended=extended))

    return learn_rich


def hand_over_cost(policy: Any) -> None:
    """Make the measured round times effective, as a server does from rank 0 to every rank."""
    policy.import_cost(policy.export_cost())
