"""/server_info and /set_internal_state in the scheduler."""

from __future__ import annotations

import logging
from typing import Any

from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.history import SPANS
from sglang_adaptive.sglang_plugin import ranks
from sglang_adaptive.sglang_plugin.admin.reconfigure import CONFIG_KEY, Reconfigure
from sglang_adaptive.sglang_plugin.audit_scheduler import REPORT_KEY, TAKE, TakeReport
from sglang_adaptive.sglang_plugin.current import current, learnt_table
from sglang_adaptive.sglang_plugin.notes import NOTE
from sglang_adaptive.sglang_plugin.start.profiles import profile_key
from sglang_adaptive.sglang_plugin.start.warm_up_switch import WARM_UP_KEY, WarmUpSwitch
from sglang_adaptive.sglang_plugin.verify_budget.setup_check import asked
from sglang_adaptive.sglang_plugin.zero_steps.left_for_later import LeftForLater

logger = logging.getLogger(__name__)

FORCE_KEY = "adaptive_force_steps"
LEASE_KEY, LEASE_OVER_KEY = "adaptive_force_lease", "adaptive_force_lease_over"
"""Of the launcher's messages alone: the number of a hold that ends unless renewed, and that it was not."""
BUDGET_KEY = "adaptive_force_budget"
EXTEND_KEY = "adaptive_zero_step_extend_every"
LOOK = "sglang-adaptive look"
"""Id of a request for this package's part of the internal state alone."""
HISTORY = "sglang-adaptive history "
"""Id of a request for the history alone: this, and the seconds of one of ``runtime.history.SPANS``."""
RELEASE = -1
"""SGLang's message type has only numbers, so null becomes this on the way to the scheduler."""


def add_adaptive(state: dict[str, Any]) -> None:
    """Add our part to SGLang's internal *state*, or why speculation is not adaptive."""
    # SGLang lists the replicas' answers in the order in which they came.
    state["adaptive"] = {**_adaptive(), "dp_rank": ranks.replica()}


def answer(recv_req: Any, scheduler: Any) -> Any:
    """Return our part alone for a request with LOOK, HISTORY or TAKE as id; None for any other.

    The whole state has more than 500 fields, which take a scheduler milliseconds to collect.
    """
    now, span = current(), _span_asked(recv_req.rid)
    if recv_req.rid == LOOK:
        part = _adaptive()
    elif recv_req.rid == TAKE:  # a finished request for the audit, if the scheduler is idle
        audits = None if now is None else now.audits
        part = {"is_on": False, "finished": None} if audits is None else audits.take(scheduler.is_fully_idle())
    elif span is not None:  # the last seconds; None on a rank without a history
        part = {"history": None if now is None else now.controller.history(span)}
    else:
        return None
    from sglang.srt.managers.io_struct import GetInternalStateReqOutput

    return GetInternalStateReqOutput(internal_state={"adaptive": {**part, "dp_rank": ranks.replica()}})


def _adaptive() -> dict[str, Any]:
    from sglang.srt.runtime_context import get_server_args

    now = current()
    if now is None:
        static = {"active": False, "reason": getattr(get_server_args(), NOTE, {}).get("reason")}
        table = learnt_table()
        if table is not None:
            static |= {"dspark": table.snapshot(), "profile_key": profile_key().as_dict()}
        return static
    found = {**now.controller.snapshot(), "profile_key": profile_key().as_dict()}
    if now.left_for_later is not None:
        found["zero_steps"] = now.left_for_later.snapshot()
    if now.draft_window is not None:
        found["draft_window"] = now.draft_window.snapshot()
    if now.worker.device == "cuda":
        found["short_rounds"] = now.short_rounds()
    if asked():
        packed = 0 if now.budgets is None else now.budgets.rounds
        budgets = {"reason": now.why_no_budgets, "packed_rounds": packed}
        found["verify_budget"] = {**budgets, **now.controller.budget_report()}
    return found


def _span_asked(rid: Any) -> int | None:
    """Return the span of a HISTORY id in seconds; None for any other id."""
    if not isinstance(rid, str) or not rid.startswith(HISTORY):
        return None
    return next((span for span in SPANS if rid == f"{HISTORY}{span}"), None)


async def look(tokenizer_manager: Any, rid: str = LOOK) -> list[dict[str, Any]]:
    """Return our part of the internal state of every replica's scheduler, through SGLang's own communicator."""
    from sglang.srt.managers.io_struct import GetInternalStateReq

    tokenizer_manager.auto_create_handle_loop()
    answers = await tokenizer_manager.get_internal_state_communicator(GetInternalStateReq(rid=rid))
    return [answer.internal_state["adaptive"] for answer in answers]


def handlers() -> dict[str, Any]:
    """Return this package's handlers of /set_internal_state, by key."""
    now = current()
    controller = None if now is None else now.controller
    force = ForceSteps(controller)
    return {
        FORCE_KEY: force,
        LEASE_KEY: Lease(force),
        LEASE_OVER_KEY: LeaseOver(controller),
        BUDGET_KEY: ForceBudget(controller),
        CONFIG_KEY: Reconfigure(controller),
        WARM_UP_KEY: WarmUpSwitch(controller),
        EXTEND_KEY: ExtendEvery(None if now is None else now.left_for_later),
        REPORT_KEY: TakeReport(None if now is None else now.audits),
    }


class ForceSteps:
    """Handler of ``adaptive_force_steps``: SGLang calls ``validate``, then ``apply``."""

    def __init__(self, controller: AdaptiveController | None) -> None:
        self._controller = controller
        self.lease: int | None = None
        """From the same message; None for a hold without an end."""

    def validate(self, key: str, value: Any) -> None:
        """Raise SGLang's UpdateRejected unless *value* are steps with a runtime state, or RELEASE."""
        from sglang.srt.managers.scheduler_components.internal_state import UpdateRejected

        if self._controller is None:
            raise UpdateRejected(f"{key}: this server's speculation is not adaptive")
        if value != RELEASE and value not in self._controller.tiers:
            built = ", ".join(map(str, self._controller.tiers))
            raise UpdateRejected(f"{key}: got {value!r}; expected one of {built}, or null to release")

    def apply(self, key: str, value: Any) -> None:
        """Hold or release the steps from the next round on."""
        controller = self._controller
        assert controller is not None, "validate came first"
        before, steps = controller.forced_steps, None if value == RELEASE else int(value)
        controller.force_steps(steps, self.lease)
        if self.lease is None or steps != before:  # a renewal is not worth a line
            logger.info("adaptive: draft steps %s", "released" if steps is None else f"held at {steps}")


class Lease:
    """Handler of ``adaptive_force_lease``: SGLang validates the whole message before it applies any of it."""

    def __init__(self, force: ForceSteps) -> None:
        self._force = force

    def validate(self, key: str, value: Any) -> None:
        """Keep *value* for the hold in the same message; ``ForceSteps`` refuses what is wrong with that."""
        self._force.lease = int(value)

    def apply(self, key: str, value: Any) -> None:
        """Do nothing: ``ForceSteps`` has applied it."""


class LeaseOver:
    """Handler of ``adaptive_force_lease_over``."""

    def __init__(self, controller: AdaptiveController | None) -> None:
        self._controller = controller

    def validate(self, key: str, value: Any) -> None:
        """Accept any number: one of a hold that is over changes nothing."""

    def apply(self, key: str, value: Any) -> None:
        """End the hold with this number, if it was not renewed."""
        if self._controller is not None and self._controller.end_lease(int(value)):
            held = self._controller.forced_steps
            now = "released" if held is None else f"held at {held} again"
            logger.info("adaptive: draft steps %s: nobody renewed the hold", now)


class ForceBudget:
    """Handler of ``adaptive_force_budget``: drafts to verify of a request while steps are held; 0 for all."""

    def __init__(self, controller: AdaptiveController | None) -> None:
        self._controller = controller

    def validate(self, key: str, value: Any) -> None:
        """Raise SGLang's UpdateRejected unless *value* is 0, or from 1 on where rounds may have a budget."""
        from sglang.srt.managers.scheduler_components.internal_state import UpdateRejected

        if self._controller is None:
            raise UpdateRejected(f"{key}: this server's speculation is not adaptive")
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UpdateRejected(f"{key}: got {value!r}; expected an integer from 0 on")
        if value and not self._controller.budgets_allowed:
            raise UpdateRejected(f"{key}: all requests of a batch verify equally many drafts here; the log says why")

    def apply(self, key: str, value: Any) -> None:
        """Verify so many from the next round on."""
        assert self._controller is not None, "validate came first"
        self._controller.force_budget(int(value) or None)
        logger.info("adaptive: %s drafts a request are verified while steps are held", value or "all")


class ExtendEvery:
    """Handler of ``adaptive_zero_step_extend_every``: how many zero-step rounds share one draft extend."""

    def __init__(self, deferred: LeftForLater | None) -> None:
        self._deferred = deferred

    def validate(self, key: str, value: Any) -> None:
        """Raise SGLang's UpdateRejected unless *value* is an integer from 1 to the most draft tokens."""
        from sglang.srt.managers.scheduler_components.internal_state import UpdateRejected

        if self._deferred is None:
            raise UpdateRejected(f"{key}: this server runs the draft's extend in every zero-step round")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= self._deferred.max_every:
            raise UpdateRejected(f"{key}: got {value!r}; expected an integer from 1 to {self._deferred.max_every}")

    def apply(self, key: str, value: Any) -> None:
        """Change the interval from the next round on."""
        assert self._deferred is not None, "validate came first"
        self._deferred.set_every(value)
        logger.info("adaptive: at zero steps the draft's extend runs every %d rounds", value)
