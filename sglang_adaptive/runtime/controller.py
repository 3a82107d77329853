"""The controller: chooses each round's steps, passes results to the policy, and takes operator commands."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sglang_adaptive.policy.base import (
    AdaptivePolicy,
    Forecast,
    Forecasts,
    LearnsAcceptance,
    LearnsCost,
    LooksUp,
    Probes,
)
from sglang_adaptive.policy.config import AdaptiveConfig
from sglang_adaptive.runtime.alarms import ACCEPTANCE, AcceptanceWatch, Alarms
from sglang_adaptive.runtime.counters import ContextLengths, Counters, SwitchRecord
from sglang_adaptive.runtime.history import History
from sglang_adaptive.runtime.meters import MeterReading
from sglang_adaptive.runtime.round_note import RoundNote
from sglang_adaptive.runtime.round_times import RoundClock
from sglang_adaptive.runtime.round_trace import RoundTrace
from sglang_adaptive.runtime.start_up import Device
from sglang_adaptive.runtime.states import AdaptiveWorker, Choice, RuntimeStates

logger = logging.getLogger(__name__)


class AdaptiveController(RuntimeStates):
    """The object that SGLang's worker calls: it asks the policy before every round and passes it every result.

    - Only :meth:`activate_step_by_batch` changes the live state. SGLang calls it before a round drafts, so steps never
      change within a round.
    - A result is credited to the steps that drafted it. With overlap scheduling they may no longer be live.
    - A policy that raises is not asked again until it is replaced. The launch steps run unless an operator holds
      others. After an audit has proved a token wrong, zero steps run instead.
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

        If ranks vote on the steps, each uses its own times and *share_cost* returns its argument. *profile_saved_at*
        returns the Unix time of the last write of the cost profile, or None.
        """
        super().__init__(worker, policy, device)
        self.share_cost = share_cost
        self._clock = clock or RoundClock()
        self._wall_time = wall_time
        self._profile_saved_at = profile_saved_at
        self._config_changed: dict[str, Any] | None = None
        self._counters = Counters()
        self.alarms = Alarms(wall_time)
        """What the server has noticed about itself."""
        self.acceptance_watch: AcceptanceWatch | None = AcceptanceWatch()
        """None if another rank watches the same rounds, or if acceptance depends on the text alone."""
        self._history: History | None = None
        """None before :meth:`init_states`, and after an error in the history."""
        self.trace: RoundTrace | None = None
        """Records each round; None for no trace."""
        self._looks_up: tuple[bool, int] = False, 0
        """Whether rounds may look drafts up, and how many rounds are in flight when one is chosen."""
        """Returns the would-be acceptance of lookups, priced by a policy and its drafts' acceptance; None if lookups
        are not counted."""
        self.audits: Callable[[], dict[str, Any]] | None = None
        """Returns the audit results of finished requests; None without an audit."""
        self.audit_round = False
        """Whether all requests of the coming round are decoded again for the audit."""
        self._forced_steps: int | None = None
        self._lease: int | None = None
        """The number of the current hold if it ends unless renewed; see :meth:`force_steps`."""
        self._held_before: int | None = None
        """The steps that were held when the lease began."""
        self._pending_cause: str | None = None  # an operator's action, the cause of the next switch
        self._degraded: str | None = None
        self._degraded_steps = self.launch_steps
        """The steps that run while the policy is not asked."""
        self._last_batch_size: int | None = None
        self._probed_from: int | None = None
        """The steps before the current probe; None without a probe."""
        self._limited = False
        """Whether the chosen steps did not fit in the last round."""
        self._context_lengths = ContextLengths()
        self._adopt(policy)

    def allow_lookups(self, allowed: bool, behind: int = 0) -> None:
        """Set whether rounds may look drafts up; *behind* is as in ``LooksUp``."""
        self._looks_up = allowed, behind
        self._adopt(self.params)

    @property
    def lookup_requests(self) -> int:
        """Largest batch size of a lookup round; 0 for none."""
        return 0 if self._looker is None else self._looker.lookup_requests

    @property
    def tracks_texts(self) -> bool:
        """Whether the texts of batches up to that size must be tracked in the coming round.

        In the warm-up they are, so that the kernels for each depth are loaded before the server is ready.
        """
        if self._looker is None or self._degraded is not None:
            return False
        if self._warm_up is not None:
            return True
        return self.lookups_fit and self._looker.tracks_texts  # without matches the policy chooses no lookups

    def expect(self, requests: Sequence[Hashable]) -> None:
        """Name the requests of the coming round to a policy with lookups."""
        if self._looker is not None:
            self._looker.expect(requests)

    def _build_states(self, cuda_graph_bs: list[int] | None) -> None:
        super()._build_states(cuda_graph_bs)
        self._history = History(self.tiers, self._clock.now)

    def end_warm_up(self) -> None:
        """End the warm-up and ask the policy again; call it while no request runs."""
        if self._warm_up is not None:
            super().end_warm_up()
            self.interrupt()
            self._last_batch_size = None

    @property
    def wants_shadow_drafts(self) -> bool:
        """Whether the policy wants more shadow drafts; False in the warm-up and after the policy failed."""
        if self._draft_learner is None or self._warm_up is not None or self._degraded is not None:
            return False
        return self._draft_learner.wants_shadow_drafts

    def activate_step_by_batch(self, batch_size: int) -> None:
        """Choose what the next round does and make its steps live; *batch_size* is its number of requests."""
        if self._warm_up is not None:
            return self._warm(self._warm_up, batch_size)
        wanted = self._choose(batch_size) if self.agreed is None else self._agreed(self.agreed[0], batch_size)
        choice, before = self._fitting(wanted), self.worker.speculative_num_steps
        self._last_batch_size = batch_size
        was_limited, self._limited = self._limited, choice is not wanted
        self._run(choice.steps)
        if choice.steps != before:
            cause = "capacity" if was_limited else choice.cause
            self._counters.add_switch(SwitchRecord(self._wall_time(), before, choice.steps, batch_size, cause))
            logger.debug("draft steps %d -> %d at batch size %d (%s)", before, choice.steps, batch_size, cause)

    def interrupt(self) -> None:
        """Note that a prefill, its launch or an idle period separates the next result from the last one."""
        self._clock.interrupt()

    def on_verify_complete(
        self, num_correct_drafts_per_req: Sequence[int], batch_size: int, note: RoundNote | None = None
    ) -> None:
        """Count and time a verified round, and pass it to the policy; the live steps do not change here.

        ``num_correct_drafts_per_req`` are the accepted drafts of each request without bonus tokens. Without *note* the
        round counts for the live steps, which is correct without overlap.
        """
        if self._warm_up is not None:
            return
        note = note or RoundNote(self.worker.speculative_num_steps)
        if note.audit:
            return self.interrupt()
        self._complete(note, num_correct_drafts_per_req, batch_size)
        self._counters.add_round(note)
        if self.acceptance_watch is not None and self.acceptance_watch.add(self._clock.now(), note):
            self.alarms.set(ACCEPTANCE, self.acceptance_watch.finding)
        history = self._closed_history()
        if history is not None:
            history.add(note)
        if self.trace is not None:
            self.trace.add(note)
        if self._degraded is None:
            try:
                self.params.observe(note)
                if self._learner is not None and self._learner.cost_sync_due:
                    self._hand_over_cost(self._learner)
            except Exception as error:
                self.policy_failed(error)

    def _complete(self, note: RoundNote, counts: Sequence[int], batch_size: int) -> None:
        """Complete a round's note with its accept *counts*, and count what only the note has."""
        note.num_correct_drafts_per_req = counts
        # Rounds of several ranks take as long as the largest batch.
        note.batch_size = note.largest_batch or batch_size
        note.looked_up = note.steps in self.lookups
        note.chosen = self._forced_steps is None
        note.seconds = self._clock.read(note.steps, note.batch_size, note.looked_up)
        note.since_last = self._clock.since_last
        if note.steps and note.lengths and not note.looked_up:
            self._context_lengths.add(note.lengths, counts, note.steps)

    def _adopt(self, policy: AdaptivePolicy) -> None:
        """Use *policy*, and note which optional protocols it implements."""
        self.params = policy
        self._looker = policy if isinstance(policy, LooksUp) else None
        if self._looker is not None:
            self._looker.allow_lookups(*self._looks_up)
        self._draft_learner = policy if isinstance(policy, LearnsAcceptance) else None
        self._learner = policy if isinstance(policy, LearnsCost) else None
        self._probes = policy if isinstance(policy, Probes) else None
        self._probed_from = None

    def _choose(self, batch_size: int) -> Choice:
        if self.audit_round:
            self._pending_cause = "audit"
            return Choice(0, "audit")
        if self._forced_steps is not None:  # an operator's depth works without a policy
            self._pending_cause = "released"
            return Choice(self._forced_steps, "forced")
        if self._degraded is None:
            try:
                steps = self.params.get_steps_for_batch(batch_size)
                if steps in self._states:
                    return Choice(steps, self._cause(steps, batch_size))
                self._degrade(f"policy {self.params.name} chose {steps!r} steps, which has no runtime state")
            except Exception as error:
                self.policy_failed(error)
        return Choice(self._degraded_steps, "degraded")

    def _agreed(self, steps: int, batch_size: int) -> Choice:
        if steps == self._forced_steps:
            self._pending_cause = "released"
            return Choice(steps, "forced")
        return Choice(steps, self._cause(steps, batch_size))

    def _cause(self, target: int, batch_size: int) -> str:
        """Return the cause of a switch to *target*, if there is one."""
        pending, self._pending_cause = self._pending_cause, None
        before, self._probed_from = self._probed_from, None
        if self._probes is not None and self._probes.probing:
            self._probed_from = self.worker.speculative_num_steps if before is None else before
        if pending is not None:
            return pending
        if self.lookups and (target in self.lookups or self.worker.speculative_num_steps in self.lookups):
            return "lookup"
        if self._probed_from is not None or target == before:
            return "probe"
        return "acceptance" if batch_size == self._last_batch_size else "batch size"

    def _hand_over_cost(self, policy: LearnsCost) -> None:
        """Give every rank the first rank's table.

        A rank that fails still takes part, because the others wait for it.
        """
        try:
            own = policy.export_cost()
        except Exception:
            self.share_cost(None)
            raise
        shared = self.share_cost(own)
        if shared is None:
            raise RuntimeError("the first rank has no cost table to share")
        policy.import_cost(shared)

    def policy_failed(self, error: Exception) -> None:
        """Stop asking the policy, which raised *error*; call it while the policy is asked."""
        self._degrade(f"policy {self.params.name} raised {type(error).__name__}: {error}", error)

    def _degrade(self, why: str, error: Exception | None = None, steps: int | None = None) -> None:
        """Stop asking the policy, and log why; *steps*, or else the launch steps, run until it is replaced."""
        self._degraded = why
        self._degraded_steps = self.launch_steps if steps is None else steps
        logger.error("adaptive speculation degraded to %d steps: %s", self._degraded_steps, why, exc_info=error)

    def _closed_history(self) -> History | None:
        """Return the history up to the last full second. An error ends the history, not the round."""
        if self._history is not None:
            try:
                # A policy that failed is not asked again.
                self._history.close(self.params if self._degraded is None else None)
            except Exception:
                self._history = None
                logger.exception("adaptive: no history from now on, because the policy could not price its rounds")
        return self._history

    # -- the operator ---------------------------------------------------------------------------------------------

    @property
    def forced_steps(self) -> int | None:
        """The steps that an operator holds; None while the policy decides."""
        return self._forced_steps

    def force_steps(self, steps: int | None, lease: int | None = None) -> None:
        """Hold *steps* from the next round on, or release them with None.

        With *lease*, a number unique to this hold, they are held until :meth:`end_lease` is called with it. A call with
        another number renews the hold. No clock is read here, because tensor-parallel ranks must decide alike.

        Raises ValueError, which lists the steps with a runtime state, if *steps* have none.
        """
        if steps is not None and steps not in self._states:
            built = ", ".join(map(str, self.tiers))
            raise ValueError(f"no runtime state for {steps!r} steps; built at start-up: {built}")
        if self._lease is None:
            self._held_before = self._forced_steps
        self._forced_steps, self._lease = steps, lease

    def end_lease(self, lease: int) -> bool:
        """Restore what was held before the hold with *lease*; return False if that was renewed or is over."""
        if lease != self._lease:
            return False
        self.force_steps(self._held_before)
        return True

    def step_down(self, why: str) -> None:
        """Run zero steps until the policy is replaced, because a token was proved wrong, as *why* describes.

        Steps that an operator holds take precedence.
        """
        self._degrade(why, steps=0)

    def replace_policy(
        self,
        policy: AdaptivePolicy,
        *,
        by: str,
        share_cost: Callable[[Any], Any] | None = None,
        profile_saved_at: Callable[[], float | None] | None = None,
    ) -> None:
        """Replace the policy from the next round on; *by* is the client that requested it.

        Call it between two :meth:`activate_step_by_batch`, at the same round on every tensor-parallel rank. A round in
        flight keeps its steps; its result is credited to them and passed to the new policy. Counts and forced steps
        are kept; a failure of the old policy and alarms are cleared.

        *share_cost* and *profile_saved_at* replace the constructor's. Raises ValueError, and changes nothing, if the
        policy may choose steps without a runtime state.
        """
        missing = [steps for steps in policy.candidate_steps if steps not in self._states]
        if missing:
            raise ValueError(f"no runtime state for {missing} steps; built at start-up: {self.tiers}")
        policy.set_cuda_graph_bs(self._cuda_graph_bs)
        self._adopt(policy)
        self.share_cost = share_cost or self.share_cost
        self._profile_saved_at = profile_saved_at or self._profile_saved_at
        self._degraded = None
        for name in self.alarms.raised:
            self.alarms.set(name, None)
        if self.acceptance_watch is not None:
            self.acceptance_watch = AcceptanceWatch()
        self._pending_cause = "configuration"
        self._config_changed = {"time": self._wall_time(), "by": by}

    def snapshot(self) -> dict[str, Any]:
        """Return the current state as JSON builtins that do not change later; docs/json.md lists the fields."""
        counters = self._counters
        return {
            "active": True,
            "reason": None,
            "policy": self.params.name,
            "current_steps": self.worker.speculative_num_steps,
            "launch_steps": self.launch_steps,
            "tiers": list(self.tiers),
            "forced_steps": self._forced_steps,
            "forced_without_end": self._forced_steps if self._lease is None else self._held_before,
            "switches": counters.switches,
            "recent_switches": [asdict(switch) for switch in counters.recent_switches],
            "rounds_by_tier": _by_steps(counters.rounds),
            "drafted_by_tier": _by_steps(counters.drafted()),
            "accepted_by_tier": _by_steps(counters.accepted()),
            "tokens_by_tier": _by_steps(counters.tokens()),
            "accepted_by_position": counters.by_position(),
            "accepted_by_length": self._context_lengths.as_list(),
            "round_times": counters.round_times.as_list(),
            "alarms": self.alarms.as_list(),
            "degraded": self._degraded is not None,
            "degraded_reason": self._degraded,
            "degraded_steps": None if self._degraded is None else self._degraded_steps,
            "profile_saved_at": self._profile_saved_at(),
            "config": self._config(),
            "config_changed": self._config_changed,
            "startup": self._startup(),
            "speedup": self._speedup(),
            "audit": self._audit(),
            **self._policy_state(),
        }

    def history(self, span: int) -> dict[str, Any] | None:
        """Return the last *span* seconds, as ``History.span``; None when there is no history."""
        history = self._closed_history()
        return None if history is None else history.span(span)

    def read_meters(self) -> MeterReading:
        """Return the values of the metrics; cheaper than a snapshot. A policy that failed is not asked."""
        policy, counters = self.params if self._degraded is None else None, self._counters
        forecaster = policy if isinstance(policy, Forecasts) else None
        forecasts = _forecasts(forecaster, counters)
        latest = forecasts.get(counters.latest)
        return MeterReading(
            time=self._wall_time(),
            current_steps=self.worker.speculative_num_steps,
            degraded=policy is None,
            alarms=self.alarms.raised,
            tiers=self.tiers,
            deepest=self.deepest,
            counters=counters,
            forecasts=forecasts,
            speedup=None if latest is None else latest.speedup,
            acceptance=() if forecaster is None else tuple(forecaster.acceptance_by_position()),
            probes=policy.probe_totals() if isinstance(policy, Probes) else None,
            profile_saved_at=self._profile_saved_at(),
            hour=self._speedup(),
            audit=self._audit(),
        )

    def _audit(self) -> dict[str, Any] | None:
        return None if self.audits is None else self.audits()

    def _speedup(self) -> dict[str, Any] | None:
        history = self._closed_history()
        return None if history is None else history.speedup()

    def _config(self) -> dict[str, Any] | None:
        # Policies that are not built from a configuration lack this attribute.
        config = getattr(self.params, "config", None)
        return config.as_dict() if isinstance(config, AdaptiveConfig) else None

    def _policy_state(self) -> dict[str, Any]:
        try:
            return self.params.snapshot()
        except Exception as error:
            return {"policy_error": f"{type(error).__name__}: {error}"}


def _by_steps(counts: Mapping[int, int]) -> dict[str, int]:
    """Return *counts* by steps as JSON, whose keys are strings."""
    return {str(steps): count for steps, count in sorted(counts.items())}


def _forecasts(policy: Forecasts | None, counters: Counters) -> dict[str, Forecast]:
    """Return *policy*'s forecast for a round like the latest of each region, where it has a time."""
    if policy is None:
        return {}
    found = {name: policy.forecast(region.batch_size, region.steps) for name, region in counters.regions.items()}
    return {name: one for name, one in found.items() if one is not None}
