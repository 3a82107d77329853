"""The runtime states of a server: attention backends and CUDA graphs for each number of steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from sglang_adaptive.policy.base import AdaptivePolicy, LooksUp
from sglang_adaptive.policy.config import CapturedSteps
from sglang_adaptive.runtime.start_up import Device, Progress, StartUp, TierBuild, WarmUp

logger = logging.getLogger(__name__)

# The runtime state of one number of steps.


# SGLang's objects, untyped because this layer must load without SGLang.
AttentionBackend: TypeAlias = Any
GraphRunner: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class SpecRuntimeState:
    """The attention backends and CUDA graphs of one number of steps, built at start-up and switched as a whole.

    Field names are SGLang 0.5.23's. An unused backend or runner is None: the draft's at zero steps, and graphs when
    CUDA graphs are off.
    """

    speculative_num_steps: int
    speculative_num_draft_tokens: int
    """Draft tokens that a verify pass reads per request: steps + 1."""

    draft_attn_backend: AttentionBackend | None
    cuda_graph_runner: GraphRunner | None

    target_attn_backend: AttentionBackend
    target_graph_runner: GraphRunner | None

    draft_extend_attn_backend: AttentionBackend | None
    cuda_graph_runner_for_draft_extend: GraphRunner | None


@dataclass(frozen=True, slots=True)
class Choice:
    """What a round does."""

    steps: int
    cause: str = ""
    """Why the steps change, if they do; empty in the warm-up."""


class AdaptiveWorker(Protocol):
    """The methods of a speculative worker that the controller calls; SGLang's EAGLEWorkerV2 has them."""

    speculative_num_steps: int

    def build_adaptive_runtime_state(
        self, speculative_num_steps: int, speculative_num_draft_tokens: int, cuda_graph_bs: list[int] | None = None
    ) -> SpecRuntimeState:
        """Build backends and graphs of one number of steps; slow, at start-up only."""

    def apply_runtime_state(self, state: SpecRuntimeState) -> None:
        """Make *state* the live one; a few reference assignments."""


class RuntimeStates:
    """Builds every runtime state at start-up, warms them up, and makes one of them live."""

    def __init__(self, worker: AdaptiveWorker, policy: AdaptivePolicy, device: Device | None = None) -> None:
        self.worker = worker
        self.params = policy  # the attribute's name in SGLang
        self.startup = StartUp()
        self.most_steps: int | None = None
        """The most steps that fit in the coming round; None for any."""
        self.lookups_fit = True
        """Whether the KV pool can spare slots for a lookup round of the requests that run."""
        self.agreed: tuple[int, int | None] | None = None
        """The steps that several ranks chose together for the coming round, and their common ``most_steps``; None if
        this rank chooses alone."""
        self.lookups: frozenset[int] = frozenset()
        """Draft counts of the states that look drafts up."""
        self._lookup_requests = 0
        """Largest batch size of lookup rounds."""
        self._states: dict[int, SpecRuntimeState] = {}
        self._cuda_graph_bs: list[int] | None = None
        self._graphs: dict[int, tuple[int, ...] | None] = {}
        self.launch_steps = worker.speculative_num_steps
        """The steps that the server was launched with."""
        self._device = device or Device()
        self._postponed = False
        self._asked: list[list[int] | None] = []
        self._warm_up: WarmUp | None = None
        self._warm_up_begun: float | None = None

    @property
    def candidate_steps(self) -> list[int]:
        """The steps that the policy may choose, ascending."""
        return self.params.candidate_steps

    @property
    def tiers(self) -> tuple[int, ...]:
        """The steps with a runtime state, ascending."""
        return tuple(sorted(self._states))

    @property
    def deepest(self) -> int:
        """The most draft steps with a runtime state."""
        return max(steps for steps in self._states if steps not in self.lookups)

    def widest(self, batch_size: int) -> int:
        """Return the most drafts that a round of *batch_size* may have."""
        return max(self.deepest, *self._reachable(batch_size)) if self.lookups else self.deepest

    @property
    def built(self) -> CapturedSteps:
        """The steps with a runtime state, and the batch sizes of their CUDA graphs."""
        return CapturedSteps({steps: self._graphs.get(steps) for steps in self.tiers}, self.lookups)

    @property
    def states(self) -> list[SpecRuntimeState]:
        """All runtime states, by ascending steps."""
        return [self._states[steps] for steps in self.tiers]

    def register(self, state: SpecRuntimeState, steps: int | None = None) -> None:
        """Add a runtime state that is already built, under its own steps unless *steps* is given."""
        self._states[state.speculative_num_steps if steps is None else steps] = state

    @contextmanager
    def states_postponed(self) -> Iterator[None]:
        """Postpone `init_states` inside the ``with`` to its end."""
        self._postponed = True
        try:
            yield
        finally:
            self._postponed = False
        for cuda_graph_bs in self._asked:
            self._build_states(cuda_graph_bs)
        self._asked.clear()

    def init_states(self, cuda_graph_bs: list[int] | None = None) -> None:
        """Build the states of all candidate steps that are not registered; the launch steps stay live.

        *cuda_graph_bs* is the list of batch sizes to capture, None when CUDA graphs are off; the device may replace it.
        Graphs are captured for the batch sizes at which the policy may choose the steps. The launch steps, which run
        after a policy failure, have all graphs; SGLang has built them.
        """
        if self._postponed:
            self._asked.append(cuda_graph_bs)
        else:
            self._build_states(cuda_graph_bs)

    def _build_states(self, cuda_graph_bs: list[int] | None) -> None:
        if isinstance(self.params, LooksUp):
            self.lookups = frozenset(self.params.lookup_drafts)
            self._lookup_requests = self.params.lookup_requests
        self._cuda_graph_bs = every = self._device.graph_batch_sizes(cuda_graph_bs)
        self.params.set_cuda_graph_bs(every)
        for steps in self._states:  # built by the worker for its own steps, at every size
            self._graphs[steps] = None if every is None else tuple(every)
            self.startup.tiers.append(TierBuild(steps, None, None, self._graphs[steps]))
        # Most steps first: graphs share one memory pool, and the widest pass allocates enough for the others.
        missing = [steps for steps in reversed(self.candidate_steps) if steps not in self._states]
        with Progress(lambda line: logger.info("adaptive: building runtime states: %s", line)) as progress:
            for done, steps in enumerate(missing):
                progress.now(f"{steps} steps, {done} of {len(missing)} are done")
                self._build(steps, every)
        if self.launch_steps not in self._states:
            raise ValueError(f"no runtime state for the launch depth, {self.launch_steps} steps; built: {self.tiers}")
        self.worker.apply_runtime_state(self._states[self.launch_steps])

    def begin_warm_up(self) -> None:
        """Run all reachable steps in turn from the next round on, without the policy; another call restarts it."""
        if self._warm_up_begun is None:
            self._warm_up_begun = time.perf_counter()
        self._keep_warm_up()
        self._warm_up = WarmUp(self._reachable)

    @property
    def warms_up(self) -> bool:
        """Whether the warm-up runs."""
        return self._warm_up is not None

    def end_warm_up(self) -> None:
        """End the warm-up with the launch steps live; call it while no request runs."""
        if self._warm_up is None or self._warm_up_begun is None:
            return
        self._keep_warm_up()
        self._warm_up = None
        self.startup.warm_up_seconds = time.perf_counter() - self._warm_up_begun
        self._run(self.launch_steps)

    def give_up_warm_up(self) -> None:
        """End a warm-up that is overdue."""
        logger.warning("adaptive: the warm-up never ended; the policy decides from now on")
        self.end_warm_up()

    def _fitting(self, choice: Choice) -> Choice:
        """Return *choice* if it fits, else the most steps that fit, or the fewest if none do."""
        most = self.most_steps if self.agreed is None else self.agreed[1]
        if most is None or choice.steps <= most:
            return choice
        return Choice(max((fewer for fewer in self.tiers if fewer <= most), default=self.tiers[0]), "capacity")

    def _run(self, steps: int) -> None:
        """Make *steps* live, if they are not."""
        if self.worker.speculative_num_steps != steps:
            self.worker.apply_runtime_state(self._states[steps])

    def _build(self, steps: int, every: list[int] | None) -> None:
        sizes = self._device.sizes_to_capture(self.params.cuda_graph_bs_for_step(steps), every)
        free, begun = self._device.free_gigabytes(), time.perf_counter()
        self._states[steps] = self.worker.build_adaptive_runtime_state(
            speculative_num_steps=steps, speculative_num_draft_tokens=steps + 1, cuda_graph_bs=sizes
        )
        seconds, left = time.perf_counter() - begun, self._device.free_gigabytes()
        self._graphs[steps] = None if sizes is None else tuple(sizes)
        gigabytes = None if free is None or left is None else free - left
        self.startup.tiers.append(TierBuild(steps, seconds, gigabytes, self._graphs[steps]))

    def _reachable(self, batch_size: int) -> list[int]:
        """Return the steps that a round of *batch_size* may run: those with a graph, if any have one."""
        padded = next((size for size in self._cuda_graph_bs or () if size >= batch_size), None)
        if padded is None:
            return [steps for steps in self.tiers if steps not in self.lookups or batch_size <= self._lookup_requests]
        return [steps for steps in self.tiers if padded in (self._graphs[steps] or ())]

    def _warm(self, warm_up: WarmUp, batch_size: int) -> None:
        if self.agreed is not None:
            self._run(self._fitting(Choice(self.agreed[0])).steps)
        elif warm_up.overdue:
            self.give_up_warm_up()
        else:
            self._run(self._fitting(Choice(warm_up.choose(batch_size))).steps)

    def _keep_warm_up(self) -> None:
        if self._warm_up is not None:
            self.startup.warm_up_rounds += self._warm_up.rounds
            self.startup.warmed_batch_sizes = self._warm_up.covered()

    def _startup(self) -> dict[str, Any]:
        described = self.startup.as_dict()
        if self._warm_up is not None:
            described["warm_up_rounds"] += self._warm_up.rounds
            described["warmed_batch_sizes"] = self._warm_up.covered()
        return described
