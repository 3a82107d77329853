"""Runs a policy round by round, in the order of a server with overlap scheduling."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from sglang_adaptive.lab.simulate.cost import SimulationError
from sglang_adaptive.lab.simulate.trace import IntArray, Trace
from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.choice import Choice, Coming, Source
from sglang_adaptive.policy.config import load_config
from sglang_adaptive.policy.observation import Lookup, RoundObservation
from sglang_adaptive.runtime.pending_drafts import rounds_between_outputs
from sglang_adaptive.runtime.round_times import RoundClock


class Driver:
    """Asks a policy what each round does and passes it the results as a server does.

    A round is chosen while the previous round is still running. Its result has not arrived, so the newest result that a
    decision can use is that of the round before last. Times are read from the server's own clock.
    """

    def __init__(self, policy: AdaptivePolicy, ladder: Sequence[int]) -> None:
        self.learns: bool = getattr(policy, "learns", True)
        """Whether results are passed to the policy."""
        self._policy = policy
        self._runnable = captured_steps(policy, ladder)
        self._asked = 0
        self._result: Callable[[], None] | None = None
        self._arrival = 0.0
        self._clock = RoundClock(lambda: self._arrival)
        self._outputs = DraftOutputs(load_config().zero_step_extend_every)

    def choose(self, coming: Coming) -> Choice:
        """Return what the next round does; the previous round's result arrives meanwhile.

        Raises:
            SimulationError: the policy chose steps outside the ladder, or steps without a CUDA graph at that batch size
            although it has graphs.
        """
        choice = self._policy.choose(coming)
        batch, steps = coming.batch_size, choice.steps
        if choice.source is not Source.LOOKUP and steps not in self._runnable(batch):
            runnable = sorted(self._runnable(batch))
            raise SimulationError(
                f"round {self._asked}: the policy chose {steps} steps at batch {batch}; it can run {runnable}"
            )
        self._asked += 1
        if self._result is not None:
            self._result()
        if self._policy.cost_sync_due:
            self._policy.import_cost(self._policy.export_cost())  # as from rank 0 to every rank
        return choice

    def started(
        self, choice: Choice, counts: list[int], drawn: list[int], seconds: float, comparable: bool,
        requests: Sequence[int] = (), lookups: Sequence[Lookup] = (),
    ) -> None:  # fmt: skip
        """Keep the result of the round that was chosen last; only if the policy ``learns``.

        By request, *counts* are the accepted drafts, *drawn* those that it would accept at unlimited steps, *requests*
        which it is, if known, and *lookups* what it had, if they are tracked. *seconds* include noise, and are not
        *comparable* after a prefill or an idle period.
        """

        def deliver() -> None:
            self._arrival += seconds
            if not comparable:
                self._clock.interrupt()
            size, steps, looked_up = len(counts), choice.steps, choice.source is Source.LOOKUP
            told = self._outputs.check(steps, size, self._policy.wants_shadow_drafts, looked_up)
            foretold = [min(k, 1) for k in drawn] if told else []
            read = self._clock.read(steps, size)
            observation = RoundObservation(
                choice, counts, size, read, shadow_accepts=foretold, requests=requests,
                extended=self._outputs.extended, lookups=lookups,
            )  # fmt: skip
            self._policy.observe(observation)

        self._result = deliver


class DraftOutputs:
    """When draft extends at zero steps have an output, with *every* rounds held; the next round checks it."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._since = 0
        """Zero-step rounds since the last output."""
        self.extended = False
        """Whether the latest round had an output, which ends a cycle of zero-step rounds."""

    def check(self, steps: int, requests: int, curious: bool, looked_up: bool = False) -> bool:
        """Record a round of *steps*; return whether it checks a prediction: zero steps, after an output.

        A round of looked-up drafts also has an output.
        """
        told, self._since = self.extended and not steps, 0 if steps else self._since + 1
        self.extended = looked_up or self._since >= rounds_between_outputs(requests, self._every, curious)
        if self.extended:
            self._since = 0
        return told


def captured_steps(policy: AdaptivePolicy, ladder: Sequence[int]) -> Callable[[int], frozenset[int]]:
    """Return a function from batch size to the depths that can run: those captured for it when the server starts."""
    every = frozenset(ladder)
    captured = {steps: policy.cuda_graph_bs_for_step(steps) for steps in ladder}
    sizes = sorted({size for found in captured.values() for size in found or ()})

    @cache
    def runnable(batch: int) -> frozenset[int]:
        at = bisect_left(sizes, batch)
        if at == len(sizes):  # no graphs, or a larger batch: the round runs without one
            return every
        return frozenset(steps for steps, found in captured.items() if found is None or sizes[at] in found)

    return runnable


def play(policy: AdaptivePolicy, trace: Trace) -> IntArray:
    """Run *policy* through *trace*; return the draft steps of each round.

    Raises:
        SimulationError: as `Driver.choose` does.
    """
    driver = Driver(policy, trace.ladder)
    rounds = zip(
        trace.batch.tolist(), trace.accepted_lists, trace.clock.tolist(), trace.comparable.tolist(), strict=True
    )
    depths: list[int] = []
    for now, (batch, drawn, noise, comparable) in enumerate(rounds):
        choice = driver.choose(Coming(batch))
        steps = choice.steps
        depths.append(steps)
        if driver.learns:
            counts = [k if k < steps else steps for k in drawn]
            driver.started(choice, counts, drawn, float(trace.seconds[now, steps]) * noise, comparable)
    return np.array(depths, dtype=np.int64)
