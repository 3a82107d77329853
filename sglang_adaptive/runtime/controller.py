"""The controller: runtime states, rounds, and the operator's interface."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.config import AdaptiveConfig
from sglang_adaptive.runtime.budgets import budget_report
from sglang_adaptive.runtime.round_times import RoundClock
from sglang_adaptive.runtime.rounds import Rounds
from sglang_adaptive.runtime.snapshot import ControllerSnapshot, MeterReading, read_meters
from sglang_adaptive.runtime.start_up import Device
from sglang_adaptive.runtime.states import AdaptiveWorker

logger = logging.getLogger(__name__)


class AdaptiveController(Rounds):
    """The object that SGLang's worker calls: :class:`Rounds` with the operator's methods."""

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
        """*profile_saved_at* returns the Unix time at which the cost profile was last written, None without.

        The others are as in :class:`Rounds`.
        """
        super().__init__(worker, policy, share_cost=share_cost, device=device, clock=clock, wall_time=wall_time)
        self._profile_saved_at = profile_saved_at
        self._config_changed: dict[str, Any] | None = None

    @property
    def forced_steps(self) -> int | None:
        """The steps that are held; None while the policy decides."""
        return self._forced_steps

    def force_steps(self, steps: int | None, lease: int | None = None) -> None:
        """Hold *steps* from the next round on, with all drafts verified, or release them with None.

        With *lease*, a number that no other hold has, they are held until :meth:`end_lease` is called with it; another
        call renews the hold, with another number. No clock is read here, because tensor-parallel ranks decide alike.

        Raises ValueError, which lists the steps with a runtime state, when *steps* have none.
        """
        if steps is not None and steps not in self._states:
            built = ", ".join(map(str, self.tiers))
            raise ValueError(f"no runtime state for {steps!r} steps; built at start-up: {built}")
        if self._lease is None:
            self._held_before = self._forced_steps
        self._forced_steps, self._forced_budget, self._lease = steps, None, lease

    def end_lease(self, lease: int) -> bool:
        """Hold what was held before the hold with *lease*; return False where that was renewed or is over."""
        if lease != self._lease:
            return False
        self.force_steps(self._held_before)
        return True

    def step_down(self, why: str) -> None:
        """Run zero steps until another policy replaces this one, because of *why*: a token that was proved wrong.

        Steps that an operator holds go first.
        """
        self._degrade(why, steps=0)

    def force_budget(self, budget: int | None) -> None:
        """Verify *budget* drafts a request, on average, while steps are held; None verifies all.

        Raises ValueError where rounds may have no budget, and for one below 1.
        """
        if budget is not None and (budget < 1 or not self.budgets_allowed):
            expected = "expected at least 1" if self.budgets_allowed else "all requests verify equally many drafts"
            raise ValueError(f"no budget of {budget}: {expected}")
        self._forced_budget = budget

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
        are kept; a failure of the old policy is cleared.

        *share_cost* and *profile_saved_at* replace the constructor's. Raises ValueError, and changes nothing, when the
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
        self._pending_cause = "configuration"
        self._config_changed = {"time": self._wall_time(), "by": by}

    def snapshot(self) -> ControllerSnapshot:
        """Return the current state; it does not change later."""
        counters = self._counters
        return ControllerSnapshot(
            policy=self.params.name,
            current_steps=self.worker.speculative_num_steps,
            launch_steps=self._launch_steps,
            tiers=self.tiers,
            forced_steps=self._forced_steps,
            switches=counters.switches,
            recent_switches=tuple(counters.recent_switches),
            rounds_by_tier=MappingProxyType(dict(counters.rounds)),
            drafted_by_tier=MappingProxyType(counters.drafted()),
            accepted_by_tier=MappingProxyType(counters.accepted()),
            tokens_by_tier=MappingProxyType(counters.tokens()),
            accepted_by_position=tuple(counters.by_position()),
            accepted_by_length=tuple(self._context_lengths.snapshot()),
            round_times=tuple(counters.round_times.as_list()),
            degraded=self._degraded,
            degraded_steps=None if self._degraded is None else self._degraded_steps,
            profile_saved_at=self._profile_saved_at(),
            config=self._config(),
            config_changed=None if self._config_changed is None else MappingProxyType(dict(self._config_changed)),
            policy_state=MappingProxyType(self._policy_state()),
            startup=MappingProxyType(self._startup()),
            speedup=self._speedup(),
            lookups=self.lookup_report(),
            audit=self._audit(),
        )

    def history(self, span: int) -> dict[str, Any] | None:
        """Return the last *span* seconds, as ``History.span``; None when there is no history."""
        history = self._closed_history()
        return None if history is None else history.span(span)

    def budget_report(self) -> dict[str, Any]:
        """Return what rounds with a budget came to, and how right the draft's chances were; see ``budget_report``."""
        return budget_report(self.budget, self._counters, self.calibration)

    def lookup_report(self) -> dict[str, Any] | None:
        """Return what lookups would have got accepted; see ``LookupCounter.report``. None where nobody counts it."""
        if self.count_lookups is None:
            return None
        try:
            return self.count_lookups(self.params if self._degraded is None else None, self._counters.by_position())
        except Exception:
            self.count_lookups = None
            logger.exception("adaptive: nothing is told of lookups from here on, the policy could not price them")
            return None

    def read_meters(self) -> MeterReading:
        """Return the values of the metrics; cheaper than a snapshot."""
        return read_meters(
            self.params if self._degraded is None else None,
            self._counters,
            time=self._wall_time(),
            current_steps=self.worker.speculative_num_steps,
            tiers=self.tiers,
            deepest=self.deepest,
            profile_saved_at=self._profile_saved_at(),
            hour=self._speedup(),
            verify_budget=self.budget_report() if self.budgets_allowed else None,
            lookups=self.lookup_report(),
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
