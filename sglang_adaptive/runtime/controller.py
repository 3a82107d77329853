"""Decides which depth is live, and swaps it between rounds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from sglang_adaptive.policy.base import AdaptivePolicy, LearnsCost
from sglang_adaptive.policy.built import Built
from sglang_adaptive.policy.config import AdaptiveConfig
from sglang_adaptive.policy.monitored import Probes
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.runtime.ledger import Ledger, SwitchRecord
from sglang_adaptive.runtime.meter_reading import MeterReading, read_meters
from sglang_adaptive.runtime.meters import Meters
from sglang_adaptive.runtime.round_clock import RoundClock
from sglang_adaptive.runtime.snapshot import ControllerSnapshot
from sglang_adaptive.runtime.start_up import Device, StartUp, TierBuild, timed_build
from sglang_adaptive.runtime.state import SpecRuntimeState
from sglang_adaptive.runtime.warm_up import WarmUp

logger = logging.getLogger(__name__)


class AdaptiveWorker(Protocol):
    """What the controller needs of a speculative worker; SGLang's EAGLEWorkerV2 has it."""

    speculative_num_steps: int

    def build_adaptive_runtime_state(
        self, speculative_num_steps: int, speculative_num_draft_tokens: int, cuda_graph_bs: list[int] | None = None
    ) -> SpecRuntimeState:
        """Build backends and graphs of one depth; slow, at start-up only."""

    def apply_runtime_state(self, state: SpecRuntimeState) -> None:
        """Make *state* the live one; a few reference assignments."""


@dataclass(frozen=True, slots=True)
class _Arriving:
    """Facts of the round whose result is being processed."""

    steps: int
    context_tokens: int | None = None
    foretold: Sequence[int] = ()


class AdaptiveController:
    """Owns the runtime state of every depth and asks the policy which one the next round uses.

    Three rules hold. The live state changes in :meth:`activate_step_by_batch` alone, which SGLang calls before a
    round drafts, so a round never changes depth half way. A result is credited to the depth that drafted it, which
    with overlap scheduling need not be the live one. And a policy that fails is set aside until another replaces it:
    the depth goes back to the one given at launch and serving goes on.
    """

    def __init__(
        self,
        worker: AdaptiveWorker,
        policy: AdaptivePolicy,
        *,
        share_cost: Callable[[Any], Any] = lambda payload: payload,
        device: Device | None = None,
        clock: RoundClock | None = None,
        wall_time: Callable[[], float] = time.time,
        profile_saved_at: Callable[[], float | None] = lambda: None,
    ) -> None:
        """*share_cost* returns the first tensor-parallel rank's argument on every rank; all call it together.

        *profile_saved_at* returns the Unix time at which this server's cost profile was last written, None without.
        """
        self.worker = worker
        self.params = policy  # the attribute's name in SGLang
        self._states: dict[int, SpecRuntimeState] = {}
        self._cuda_graph_bs: list[int] | None = None
        self._graphs: dict[int, tuple[int, ...] | None] = {}
        self._launch_steps = worker.speculative_num_steps
        self._forced_steps: int | None = None
        self._pending_cause: str | None = None  # what an operator did, which the next change of depth comes from
        self._config_changed: dict[str, Any] | None = None
        self._degraded: str | None = None
        self._arriving: _Arriving | None = None
        self._last_batch_size: int | None = None
        self._probes = policy if isinstance(policy, Probes) else None
        self._probed_from: int | None = None
        """The depth that a probe under way left; None without a probe."""
        self._learner = policy if isinstance(policy, LearnsCost) else None
        self.share_cost = share_cost
        self._clock = clock or RoundClock()
        self._wall_time = wall_time
        self._profile_saved_at = profile_saved_at
        self._ledger = Ledger()
        self._meters: Meters | None = None
        self._device = device or Device()
        self._warm_up: WarmUp | None = None
        self._warm_up_begun: float | None = None
        self.startup = StartUp()

    # -- start-up ---------------------------------------------------------------------------------------------

    @property
    def candidate_steps(self) -> list[int]:
        """Every depth that the policy may choose, ascending."""
        return self.params.candidate_steps

    @property
    def tiers(self) -> tuple[int, ...]:
        """The depths that have a runtime state, ascending."""
        return tuple(sorted(self._states))

    @property
    def built(self) -> Built:
        """The depths that have a runtime state, and their CUDA graphs."""
        return Built({steps: self._graphs.get(steps) for steps in self.tiers})

    @property
    def states(self) -> list[SpecRuntimeState]:
        """The runtime state of every depth, by ascending depth."""
        return [self._states[steps] for steps in self.tiers]

    def register(self, state: SpecRuntimeState, steps: int | None = None) -> None:
        """Add a runtime state that is already built, under its own depth unless *steps* is given."""
        self._states[state.speculative_num_steps if steps is None else steps] = state

    def init_states(self, cuda_graph_bs: list[int] | None = None) -> None:
        """Build the state of every candidate depth that is not registered; the launch depth stays live.

        *cuda_graph_bs* is the list of batch sizes to capture, None when CUDA graphs are off; the device may know
        better. A depth is captured for the batch sizes at which the policy may choose it. The launch depth, which
        SGLang has built by now, has them all: it is what a failing policy falls back to.
        """
        self._cuda_graph_bs = every = self._device.graph_batch_sizes(cuda_graph_bs)
        self.params.set_cuda_graph_bs(every)
        for steps in self._states:  # built by the worker for its own depth, at every size
            self._graphs[steps] = None if every is None else tuple(every)
            self.startup.tiers.append(TierBuild(steps, None, None, self._graphs[steps]))
        # The deepest first: graphs share one memory pool, and the widest pass leaves room for every other.
        for steps in reversed(self.candidate_steps):
            if steps not in self._states:
                self._build(steps, every)
        if self._launch_steps not in self._states:
            raise ValueError(f"no runtime state for the launch depth, {self._launch_steps} steps; built: {self.tiers}")
        self.worker.apply_runtime_state(self._states[self._launch_steps])

    def begin_warm_up(self) -> None:
        """Run every reachable depth in turn from the next round on, and learn nothing; again to start a new pass."""
        if self._warm_up_begun is None:
            self._warm_up_begun = time.perf_counter()
        self._keep_warm_up()
        self._warm_up = WarmUp(self._reachable)

    @property
    def warms_up(self) -> bool:
        """Whether rounds are those of the warm-up."""
        return self._warm_up is not None

    @property
    def wants_to_hear(self) -> bool:
        """Whether the policy wants more of what zero steps foretell; none does in the warm-up, or when set aside."""
        learns = self._warm_up is None and self._degraded is None
        return learns and bool(getattr(self.params, "wants_to_hear", False))

    def end_warm_up(self) -> None:
        """Let the policy decide again, from the launch depth on; to be called while no request runs."""
        if self._warm_up is None or self._warm_up_begun is None:
            return
        self._keep_warm_up()
        self._warm_up = None
        self.startup.warm_up_seconds = time.perf_counter() - self._warm_up_begun
        self.interrupt()
        self._last_batch_size = None
        if self.worker.speculative_num_steps != self._launch_steps:
            self.worker.apply_runtime_state(self._states[self._launch_steps])

    # -- every round ------------------------------------------------------------------------------------------

    def activate_step_by_batch(self, batch_size: int) -> None:
        """Make the depth for the round about to start live; *batch_size* is its number of requests."""
        if self._warm_up is not None:
            self._warm(self._warm_up, batch_size)
            return
        target, cause = self._choose(batch_size)
        self._last_batch_size = batch_size
        if target != self.worker.speculative_num_steps:
            self._switch(target, batch_size, cause)

    def expect_result(
        self, drafted_steps: int, context_tokens: int | None = None, foretold: Sequence[int] = ()
    ) -> None:
        """Say which depth drafted the round that the next :meth:`on_verify_complete` reports.

        The others are as in :class:`RoundObservation`. Without this call the round is taken to be the live depth's,
        which is right without overlap.
        """
        self._arriving = _Arriving(drafted_steps, context_tokens, foretold)

    def interrupt(self) -> None:
        """Say that a prefill, its launch or an idle spell separates the next result from the last one."""
        self._clock.interrupt()

    def on_verify_complete(self, num_correct_drafts_per_req: Sequence[int], batch_size: int) -> None:
        """Learn from one verified round; a decision that follows takes effect before the next draft.

        ``num_correct_drafts_per_req`` holds the accepted drafts of each request, bonus tokens not counted.
        """
        arriving, self._arriving = self._arriving, None
        if self._warm_up is not None:
            return
        if arriving is None:
            arriving = _Arriving(self.worker.speculative_num_steps)
        observation = RoundObservation(
            steps=arriving.steps,
            num_correct_drafts_per_req=num_correct_drafts_per_req,
            batch_size=batch_size,
            seconds=self._clock.read(arriving.steps, batch_size),
            context_tokens=arriving.context_tokens,
            chosen=self._forced_steps is None,
            foretold=arriving.foretold,
        )
        self._ledger.credit(observation)
        if self._meters is not None:
            self._meters.add_round(observation)
        if self._degraded is None:
            try:
                self.params.observe(observation)
                if self._learner is not None and self._learner.cost_sync_due:
                    self._hand_over_cost(self._learner)
            except Exception as error:
                self._degrade(f"policy {self.params.name} raised {type(error).__name__}: {error}", error)

    # -- operators --------------------------------------------------------------------------------------------

    def force_steps(self, steps: int | None) -> None:
        """Hold the depth at *steps* from the next round on, or release it with None.

        Raises ValueError, naming the depths that exist, when no runtime state was built for *steps*.
        """
        if steps is not None and steps not in self._states:
            built = ", ".join(map(str, self.tiers))
            raise ValueError(f"no runtime state for {steps!r} steps; built at start-up: {built}")
        self._forced_steps = steps

    def replace_policy(
        self,
        policy: AdaptivePolicy,
        *,
        by: str,
        share_cost: Callable[[Any], Any] | None = None,
        profile_saved_at: Callable[[], float | None] | None = None,
    ) -> None:
        """Let *policy* decide from the next round on, in the place of the one that does; *by* is who asked for it.

        To be called between two :meth:`activate_step_by_batch`, at the same round on every tensor-parallel rank. A
        round in flight keeps its depth, and its result is credited to that depth as ever; the new policy hears of
        it. What was counted so far and a forced depth stay, a failure of the old policy is forgotten.

        *share_cost* and *profile_saved_at* replace the constructor's. Raises ValueError, and leaves everything as it
        was, when the policy may choose a depth that has no runtime state.
        """
        missing = [steps for steps in policy.candidate_steps if steps not in self._states]
        if missing:
            raise ValueError(f"no runtime state for {missing} steps; built at start-up: {self.tiers}")
        policy.set_cuda_graph_bs(self._cuda_graph_bs)
        self.params = policy
        self._learner = policy if isinstance(policy, LearnsCost) else None
        self._probes = policy if isinstance(policy, Probes) else None
        self._probed_from = None
        self.share_cost = share_cost or self.share_cost
        self._profile_saved_at = profile_saved_at or self._profile_saved_at
        self._degraded = None
        self._pending_cause = "configuration"
        self._config_changed = {"time": self._wall_time(), "by": by}

    def snapshot(self) -> ControllerSnapshot:
        """Return the state of this moment; safe to keep."""
        ledger = self._ledger
        return ControllerSnapshot(
            policy=self.params.name,
            current_steps=self.worker.speculative_num_steps,
            launch_steps=self._launch_steps,
            tiers=self.tiers,
            forced_steps=self._forced_steps,
            switches=ledger.switches,
            recent_switches=tuple(ledger.recent_switches),
            rounds_by_tier=MappingProxyType(dict(ledger.rounds_by_tier)),
            drafted_by_tier=MappingProxyType(dict(ledger.drafted_by_tier)),
            accepted_by_tier=MappingProxyType(dict(ledger.accepted_by_tier)),
            tokens_by_tier=MappingProxyType(ledger.accept_counts.tokens()),
            accepted_by_position=tuple(ledger.accept_counts.by_position()),
            round_times=tuple(ledger.round_times.as_list()),
            degraded=self._degraded,
            profile_saved_at=self._profile_saved_at(),
            config=self._config(),
            config_changed=None if self._config_changed is None else MappingProxyType(dict(self._config_changed)),
            policy_state=MappingProxyType(self._policy_state()),
            startup=MappingProxyType(self._startup()),
        )

    def start_metering(self) -> None:
        """Count from now on what :meth:`read_meters` reports; until then monitoring costs the rounds nothing."""
        self._meters = self._meters or Meters()

    def read_meters(self) -> MeterReading:
        """Return what metrics report; :meth:`start_metering` comes first."""
        assert self._meters is not None, "start_metering comes first"
        return read_meters(
            self.params if self._degraded is None else None,
            self._ledger,
            self._meters,
            current_steps=self.worker.speculative_num_steps,
            tiers=self.tiers,
            profile_saved_at=self._profile_saved_at(),
        )

    # -- inside, start-up -------------------------------------------------------------------------------------

    def _build(self, steps: int, every: list[int] | None) -> None:
        sizes = self._device.sizes_to_capture(self.params.cuda_graph_bs_for_step(steps), every)
        self._states[steps], built = timed_build(
            steps,
            sizes,
            self._device,
            lambda: self.worker.build_adaptive_runtime_state(
                speculative_num_steps=steps, speculative_num_draft_tokens=steps + 1, cuda_graph_bs=sizes
            ),
        )
        self._graphs[steps] = built.graph_batch_sizes
        self.startup.tiers.append(built)

    def _reachable(self, batch_size: int) -> list[int]:
        """Return the depths that a round of *batch_size* may run: those with a graph, where any has one."""
        padded = next((size for size in self._cuda_graph_bs or () if size >= batch_size), None)
        if padded is None:
            return list(self.tiers)
        return [steps for steps in self.tiers if padded in (self._graphs[steps] or ())]

    def _warm(self, warm_up: WarmUp, batch_size: int) -> None:
        if warm_up.overdue:
            logger.warning("adaptive: the end of the warm-up never came; the policy decides from here on")
            self.end_warm_up()
            return
        steps = warm_up.choose(batch_size)
        if steps != self.worker.speculative_num_steps:
            self.worker.apply_runtime_state(self._states[steps])

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

    # -- inside -----------------------------------------------------------------------------------------------

    def _choose(self, batch_size: int) -> tuple[int, str]:
        if self._degraded is not None:
            return self._launch_steps, "degraded"
        if self._forced_steps is not None:
            self._pending_cause = "released"
            return self._forced_steps, "forced"
        try:
            target = self.params.get_steps_for_batch(batch_size)
        except Exception as error:
            self._degrade(f"policy {self.params.name} raised {type(error).__name__}: {error}", error)
            return self._launch_steps, "degraded"
        if target not in self._states:
            self._degrade(f"policy {self.params.name} chose {target!r} steps, which has no runtime state")
            return self._launch_steps, "degraded"
        return target, self._cause(target, batch_size)

    def _cause(self, target: int, batch_size: int) -> str:
        """Say what made the policy's choice differ, if it does; only one thing changes between rounds."""
        pending, self._pending_cause = self._pending_cause, None
        before, self._probed_from = self._probed_from, None
        if self._probes is not None and self._probes.probing:
            self._probed_from = self.worker.speculative_num_steps if before is None else before
        if pending is not None:
            return pending
        if self._probed_from is not None or target == before:
            return "probe"
        return "acceptance" if batch_size == self._last_batch_size else "batch size"

    def _switch(self, target: int, batch_size: int, cause: str) -> None:
        before = self.worker.speculative_num_steps
        self.worker.apply_runtime_state(self._states[target])
        self._ledger.record(SwitchRecord(self._wall_time(), before, target, batch_size, cause))
        if self._meters is not None:
            self._meters.add_switch(cause)
        logger.debug("draft steps %d -> %d at batch size %d (%s)", before, target, batch_size, cause)

    def _hand_over_cost(self, policy: LearnsCost) -> None:
        """Give every rank the first rank's table; a rank that fails still takes part, or the others would wait."""
        try:
            payload = policy.export_cost()
        except Exception:
            self.share_cost(None)
            raise
        shared = self.share_cost(payload)
        if shared is None:
            raise RuntimeError("the first rank has no cost table to share")
        policy.import_cost(shared)

    def _degrade(self, why: str, error: Exception | None = None) -> None:
        """Set the policy aside, and log it: nothing asks the policy again, so it is logged once."""
        self._degraded = why
        logger.error("adaptive speculation degraded to %d steps: %s", self._launch_steps, why, exc_info=error)

    def _config(self) -> dict[str, Any] | None:
        # Policies that are not made from a configuration, as a program's own, have no such attribute.
        config = getattr(self.params, "config", None)
        return config.as_dict() if isinstance(config, AdaptiveConfig) else None

    def _policy_state(self) -> dict[str, Any]:
        try:
            return self.params.snapshot()
        except Exception as error:
            return {"policy_error": f"{type(error).__name__}: {error}"}
