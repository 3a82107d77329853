"""The controller: decides what each round does, passes results to the policy, and takes operator commands."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.choice import FORCED, Choice, Coming, Source, drafted
from sglang_adaptive.policy.config import AdaptiveConfig
from sglang_adaptive.policy.observation import RoundNote
from sglang_adaptive.runtime.alarms import AcceptanceWatch
from sglang_adaptive.runtime.counters import ContextLengths, Counters, cause_of
from sglang_adaptive.runtime.history import History
from sglang_adaptive.runtime.round_times import RoundClock
from sglang_adaptive.runtime.round_trace import RoundTrace
from sglang_adaptive.runtime.states import AdaptiveWorker, Device, RuntimeStates, WarmUp

logger = logging.getLogger(__name__)


class AdaptiveController:
    """Asks the policy before every round, and passes it every result.

    - Only :meth:`choose` changes the live state. It is called before a round drafts, so steps never change within a
      round.
    - A result is credited to what its round did. With overlap scheduling that may no longer be live.
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
        self.states = RuntimeStates(worker, device)
        self.warm_up = WarmUp(self.states.reachable)
        """Chooses what rounds do while it runs; the policy is not asked then."""
        self.late_kernel_loads: list[str] | None = None
        """Names of the first Triton kernels that loaded after start-up; None if not watched."""
        self.requests: Sequence[Hashable] = ()
        """The requests of the coming round; empty if unknown."""
        self.most_steps: int | None = None
        """The most drafts that fit in the coming round; None for any."""
        self.lookups_fit = True
        """Whether the KV pool can spare slots for a lookup round of the requests that run."""
        self.agreed: tuple[Choice, int | None] | None = None
        """What several ranks chose together for the coming round, and their common ``most_steps``; None if this rank
        chooses alone."""
        self.share_cost = share_cost
        self._clock = clock or RoundClock()
        self.wall_time = wall_time
        self.profile_saved_at = profile_saved_at
        self._config_changed: dict[str, Any] | None = None
        self.counters = Counters()
        self.acceptance_watch: AcceptanceWatch | None = AcceptanceWatch(wall_time)
        """None if another rank watches the same rounds, or if acceptance depends on the text alone."""
        self._history: History | None = None
        """None before :meth:`build_states`, and after an error in the history."""
        self.trace: RoundTrace | None = None
        """Records each round; None for no trace."""
        self._looks_up: tuple[bool, int] = False, 0
        """Whether rounds may look drafts up, and how many rounds are in flight when one is chosen."""
        self.audits: Callable[[], dict[str, Any] | None] = lambda: None
        """Returns the audit results of finished requests; None without an audit."""
        self.audit_round = False
        """Whether all requests of the coming round are decoded again for the audit."""
        self.forced_steps: int | None = None
        """The steps that an operator holds; None while the policy decides."""
        self._lease: int | None = None
        """The number of the current hold if it ends unless renewed; see :meth:`force_steps`."""
        self._held_before: int | None = None
        """The steps that were held when the lease began."""
        self.degraded: str | None = None
        """Why the policy is not asked; None while it is."""
        self._degraded_steps = self.states.launch.steps
        """The steps that run while the policy is not asked."""
        self._batch_size: int | None = None
        """Requests of the latest round; None before the first."""
        self.context_lengths = ContextLengths()
        self.policy = policy

    def allow_lookups(self, allowed: bool, behind: int = 0) -> None:
        """Set whether rounds may look drafts up; as ``AdaptivePolicy.allow_lookups``, for later policies as well."""
        self._looks_up = allowed, behind
        self.policy.allow_lookups(allowed, behind)

    @property
    def tracks_texts(self) -> bool:
        """Whether the texts of batches of up to ``policy.lookup_requests`` must be tracked in the coming round.

        In the warm-up they are, so that the kernels for each depth are loaded before the server is ready.
        """
        fits = self.warm_up.runs or (self.lookups_fit and self.policy.tracks_texts)
        return self.degraded is None and fits  # without matches the policy chooses no lookups

    def build_states(self) -> None:
        """Build the runtime states of all that the policy may choose; see ``RuntimeStates.build``."""
        self.states.build(self.policy)
        self._history = History(self.states.tiers, self._clock.now)

    def end_warm_up(self) -> None:
        """End the warm-up with the launch steps live, and ask the policy again; call it while no request runs."""
        if self.warm_up.runs:
            self.warm_up.end()
            self.states.run(self.states.launch)
            self.interrupt()
            self._batch_size = None

    def warm_up_choice(self, batch_size: int) -> Choice | None:
        """Return what the warm-up runs next; None if there is none, or if it ended because it is overdue."""
        if self.warm_up.runs and self.warm_up.overdue:
            logger.warning("adaptive: the warm-up never ended; the policy decides from now on")
            self.end_warm_up()
        return self.warm_up.choose(batch_size) if self.warm_up.runs else None

    @property
    def wants_shadow_drafts(self) -> bool:
        """Whether the policy wants more shadow drafts; False in the warm-up and after the policy failed."""
        return not self.warm_up.runs and self.degraded is None and self.policy.wants_shadow_drafts

    def choose(self, batch_size: int) -> None:
        """Choose what the next round does, and make its state live; *batch_size* is its number of requests."""
        agreed, most = self.agreed or (None, self.most_steps)
        wanted = agreed or self.warm_up_choice(batch_size) or self._wanted(batch_size)
        if wanted.steps == self.forced_steps:
            wanted = wanted._replace(why=FORCED)
        before, choice = self.states.live, self.states.fitting(wanted, most)
        self.states.run(choice)
        if self.warm_up.runs:
            return
        if choice.state != before.state:
            cause = cause_of(before, choice, batch_size == self._batch_size)
            self.counters.add_switch(self.wall_time(), before.steps, choice.steps, batch_size, cause)
            logger.debug("draft steps %d -> %d at batch size %d (%s)", before.steps, choice.steps, batch_size, cause)
        self._batch_size = batch_size

    def interrupt(self) -> None:
        """Note that a prefill, its launch or an idle period separates the next result from the last one."""
        self._clock.interrupt()

    def verified(
        self, num_correct_drafts_per_req: Sequence[int], batch_size: int, note: RoundNote | None = None
    ) -> None:
        """Count and time a verified round, and pass it to the policy; the live steps do not change here.

        ``num_correct_drafts_per_req`` are the accepted drafts of each request without bonus tokens. Without *note* the
        round counts for the live steps, which is correct without overlap.
        """
        if self.warm_up.runs:
            return
        note = note or RoundNote(self.states.live)
        if note.audit:
            return self.interrupt()
        note.num_correct_drafts_per_req = num_correct_drafts_per_req
        # Rounds of several ranks take as long as the largest batch.
        note.batch_size = note.largest_batch or batch_size
        note.seconds = self._clock.read(note.steps, note.batch_size, note.looked_up)
        note.since_last = self._clock.since_last
        if note.steps and not note.looked_up:
            self.context_lengths.add(note.lengths, num_correct_drafts_per_req, note.steps)
        self.counters.add_round(note)
        if self.acceptance_watch is not None:
            self.acceptance_watch.add(self._clock.now(), note)
        history = self._closed_history()
        if history is not None:
            history.add(note)
        if self.trace is not None:
            self.trace.add(note)
        if self.degraded is None:
            try:
                self.policy.observe(note)
                if self.policy.cost_sync_due:
                    self._hand_over_cost()
            except Exception as error:
                self.policy_failed(error)

    def _wanted(self, batch_size: int) -> Choice:
        """Return what a round would do if there were room for it."""
        if self.audit_round:
            return drafted(0, why="audit")
        if self.forced_steps is not None:  # an operator's depth works without a policy
            return self.states.of(self.forced_steps, FORCED)
        if self.degraded is None:
            try:
                choice = self.policy.choose(Coming(batch_size, self.requests))
                if isinstance(choice, Choice) and self.states.has(choice):
                    return choice
                steps = getattr(choice, "steps", choice)
                self._degrade(f"policy {self.policy.name} chose {steps!r} steps, which has no runtime state")
            except Exception as error:
                self.policy_failed(error)
        return self.states.of(self._degraded_steps, "degraded")

    def _hand_over_cost(self) -> None:
        """Give every rank the first rank's table.

        A rank that fails still takes part, because the others wait for it.
        """
        try:
            own = self.policy.export_cost()
        except Exception:
            self.share_cost(None)
            raise
        shared = self.share_cost(own)
        if shared is None:
            raise RuntimeError("the first rank has no cost table to share")
        self.policy.import_cost(shared)

    def policy_failed(self, error: Exception) -> None:
        """Stop asking the policy, which raised *error*, if it is still asked."""
        if self.degraded is None:
            self._degrade(f"policy {self.policy.name} raised {type(error).__name__}: {error}", error)

    def _degrade(self, why: str, error: Exception | None = None, steps: int | None = None) -> None:
        """Stop asking the policy, and log why; *steps*, or else the launch steps, run until it is replaced."""
        self.degraded = why
        self._degraded_steps = self.states.launch.steps if steps is None else steps
        logger.error("adaptive speculation degraded to %d steps: %s", self._degraded_steps, why, exc_info=error)

    def _closed_history(self) -> History | None:
        """Return the history up to the last full second. An error ends the history, not the round."""
        if self._history is not None:
            try:
                self._history.close(self.figures)
            except Exception:
                self._history = None
                logger.exception("adaptive: no history from now on, because the policy could not price its rounds")
        return self._history

    def weights_updated(self, cause: str, recapture: bool) -> None:
        """After a weight update: *recapture* all graphs if told to, and lower the evidence behind acceptance.

        SGLang 0.5.23 recaptures only the graphs of the live steps; the others would replay with old addresses. The
        evidence is lowered even if the update failed: success may differ between ranks, and all must decide alike.
        """
        try:
            if recapture and (rebuilt := self.states.rebuild()):
                logger.info("adaptive: new weights, recaptured the graphs of %d depths", rebuilt)
            self.interrupt()
            if self.policy.doubt_acceptance():
                told = "adaptive: new weights (%s), what was learned about the draft counts for little from now on"
                logger.info(told, cause)
        except Exception:
            logger.exception("adaptive: the work after a weight update failed; depths may run with old graphs")

    # -- the operator ---------------------------------------------------------------------------------------------

    def force_steps(self, steps: int | None, lease: int | None = None) -> None:
        """Hold *steps* from the next round on, or release them with None.

        With *lease*, a number unique to this hold, they are held until :meth:`end_lease` is called with it. A call with
        another number renews the hold. No clock is read here, because tensor-parallel ranks must decide alike.

        Raises ValueError, which lists the steps with a runtime state, if *steps* have none.
        """
        if steps is not None and steps not in self.states.tiers:
            built = ", ".join(map(str, self.states.tiers))
            raise ValueError(f"no runtime state for {steps!r} steps; built at start-up: {built}")
        if self._lease is None:
            self._held_before = self.forced_steps
        self.forced_steps, self._lease = steps, lease

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

        Call it between two :meth:`choose`, at the same round on every tensor-parallel rank. A round in flight keeps its
        steps; its result is credited to them and passed to the new policy. Counts and forced steps are kept; a failure
        of the old policy and alarms are cleared.

        *share_cost* and *profile_saved_at* replace the constructor's. Raises ValueError, and changes nothing, if the
        policy may choose steps without a runtime state.
        """
        missing = [steps for steps in policy.candidate_steps if not self.states.has(drafted(steps))]
        if missing:
            raise ValueError(f"no runtime state for {missing} steps; built at start-up: {self.states.tiers}")
        policy.set_cuda_graph_bs(self.states.graph_batch_sizes)
        policy.allow_lookups(*self._looks_up)
        if not all(self.states.has(Choice(drafts, Source.LOOKUP)) for drafts in policy.lookup_kinds):
            policy.allow_lookups(False)
        self.policy = policy
        self.share_cost = share_cost or self.share_cost
        self.profile_saved_at = profile_saved_at or self.profile_saved_at
        self.degraded = None
        if self.acceptance_watch is not None:
            self.acceptance_watch.restart()
        self.states.live = self.states.live._replace(why="configuration")
        self._config_changed = {"time": self.wall_time(), "by": by}

    def snapshot(self) -> dict[str, Any]:
        """Return the current state as JSON builtins that do not change later; docs/json.md lists the fields."""
        counters = self.counters
        return {
            "active": True,
            "reason": None,
            "policy": self.policy.name,
            "current_steps": self.states.live.steps,
            "launch_steps": self.states.launch.steps,
            "tiers": list(self.states.tiers),
            "forced_steps": self.forced_steps,
            "forced_without_end": self.forced_steps if self._lease is None else self._held_before,
            "switches": counters.switches,
            "recent_switches": list(counters.recent_switches),
            "rounds_by_tier": _by_steps(counters.rounds),
            "drafted_by_tier": _by_steps(counters.drafted()),
            "accepted_by_tier": _by_steps(counters.accepted()),
            "tokens_by_tier": _by_steps(counters.tokens()),
            "accepted_by_position": counters.by_position(),
            "accepted_by_length": self.context_lengths.as_list(),
            "round_times": counters.round_times.as_list(),
            "alarms": self.alarms(),
            "degraded": self.degraded is not None,
            "degraded_reason": self.degraded,
            "degraded_steps": None if self.degraded is None else self._degraded_steps,
            "profile_saved_at": self.profile_saved_at(),
            "config": self.config(),
            "config_changed": self._config_changed,
            "startup": {
                "tiers": sorted(self.states.builds, key=lambda build: build["steps"]),
                **self.warm_up.as_dict(),
                "late_kernel_loads": None if self.late_kernel_loads is None else [*self.late_kernel_loads],
            },
            "speedup": self.speedup(),
            "audit": self.audits(),
            **self._policy_state(),
        }

    def history(self, span: int) -> dict[str, Any] | None:
        """Return the last *span* seconds, as ``History.span``; None when there is no history."""
        history = self._closed_history()
        return None if history is None else history.span(span)

    @property
    def figures(self) -> AdaptivePolicy:
        """The policy, to read its figures; once it has failed it is not asked again, and this one has none."""
        return self.policy if self.degraded is None else AdaptivePolicy()

    def alarms(self) -> list[dict[str, Any]]:
        """Return the alarms now raised, as JSON builtins."""
        watch = self.acceptance_watch
        return [] if watch is None or watch.alarm is None else [watch.alarm]

    def speedup(self) -> dict[str, Any] | None:
        """Return the speedup of the last hour, as ``History.speedup``; None when there is no history."""
        history = self._closed_history()
        return None if history is None else history.speedup()

    def config(self) -> dict[str, Any] | None:
        """Return the configuration of the policy as JSON builtins; None for a policy that is not built from one."""
        config = getattr(self.policy, "config", None)
        return config.as_dict() if isinstance(config, AdaptiveConfig) else None

    def _policy_state(self) -> dict[str, Any]:
        try:
            return self.policy.snapshot()
        except Exception as error:
            return {"policy_error": f"{type(error).__name__}: {error}"}


def _by_steps(counts: Mapping[int, int]) -> dict[str, int]:
    """Return *counts* by steps as JSON, whose keys are strings."""
    return {str(steps): count for steps, count in sorted(counts.items())}
