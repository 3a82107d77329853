"""The scheduler's handlers for this package's keys of /set_internal_state, run between two rounds.

All tensor-parallel ranks apply a message at the same round, because SGLang's loop receives messages once per iteration,
before it chooses a batch. Rank 0 reads its socket and broadcasts the list (``SchedulerRequestReceiver.recv_requests``),
and every rank handles the whole list before it goes on. The result depends only on the message and on state that is
equal on all ranks; round times are not, so they come from rank 0. Each data-parallel replica gets the message and
changes independently.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.config import AdaptiveConfig, check_config, describe_change
from sglang_adaptive.policy.errors import ConfigError, printable, shown
from sglang_adaptive.policy.options import is_integer
from sglang_adaptive.sglang_plugin import ranks
from sglang_adaptive.sglang_plugin.stage import Stage, Stages, current
from sglang_adaptive.sglang_plugin.stages.audit_scheduler import REPORT_KEY, Audits, Report
from sglang_adaptive.sglang_plugin.stages.lookups.rounds import LookupRounds
from sglang_adaptive.sglang_plugin.stages.zero_steps.left_for_later import LeftForLater
from sglang_adaptive.sglang_plugin.start.controller import build_successor, fitted, trace_rounds
from sglang_adaptive.sglang_plugin.start.profiles import CostSharing

logger = logging.getLogger(__name__)

CONFIG_KEY = "adaptive_config"
FORCE_KEY = "adaptive_force_steps"
EXTEND_KEY = "adaptive_zero_step_extend_every"
LEASE_OVER_KEY = "adaptive_force_lease_over"
"""Only in the HTTP server's messages, as are the next key and REPORT_KEY: the number of an expired hold."""
WARM_UP_KEY = "adaptive_warm_up"
BEGIN, END = 1, 0
"""Values of WARM_UP_KEY."""
WATCH = "watch"
"""``Change.by`` of a watched file."""


@dataclass(frozen=True, slots=True)
class Change:
    """A request to run another configuration."""

    config: dict[str, Any]
    """The configuration object, as sent."""
    source: str
    """Its source, for error lines: the file, or CONFIG_KEY."""
    by: str
    """Who sent it: a client's address, "SIGHUP" or WATCH."""

    def __post_init__(self) -> None:
        """Raise TypeError for what another client has put together."""
        if not all(map(isinstance, (self.config, self.source, self.by), (dict, str, str))):
            raise TypeError


@dataclass(frozen=True, slots=True)
class Hold:
    """Draft steps to hold; None releases the hold."""

    steps: int | None
    lease: int | None = None
    """The number of a hold that ends unless it is renewed; None for a hold without an end."""

    def __post_init__(self) -> None:
        """Raise TypeError for what another client has put together."""
        if not all(value is None or isinstance(value, int) for value in (self.steps, self.lease)):
            raise TypeError


PACKED: Mapping[str, type] = {CONFIG_KEY: Change, FORCE_KEY: Hold, REPORT_KEY: Report}
"""Dataclasses sent in SGLang's message, by key. The message maps names to numbers, so each is packed into a name."""


def pack(key: str, value: Change | Hold | Report) -> dict[str, int]:
    """Return the ``server_args`` of a message with *value* for the handler of *key*."""
    return {f"{key} {json.dumps(asdict(value))}": 1}


def unpack(recv_req: Any) -> None:
    """Unpack the values in SGLang's message under their keys; SGLang refuses names that do not unpack."""
    for name in list(recv_req.server_args):
        key, _, text = name.partition(" ")
        if key in PACKED:
            with suppress(ValueError, TypeError, RecursionError):
                value = PACKED[key](**json.loads(text))
                del recv_req.server_args[name]
                recv_req.server_args[key] = value


class Handler:
    """Handles one key. SGLang validates all keys of a message before it applies any of them."""

    def problem(self, key: str, value: Any) -> str | None:
        """Return why *value* is refused; None if it is accepted."""
        raise NotImplementedError

    def apply(self, key: str, value: Any) -> None:
        """Apply *value* from the next round on."""
        raise NotImplementedError

    def validate(self, key: str, value: Any) -> None:
        """Raise SGLang's UpdateRejected where *value* is refused."""
        from sglang.srt.managers.scheduler_components.internal_state import UpdateRejected

        problem = self.problem(key, value)
        if problem is not None:
            raise UpdateRejected(problem)


class NotAdaptive(Handler):
    """Refuses every key where speculation is static."""

    def problem(self, key: str, value: Any) -> str | None:
        return f"{key}: this server's speculation is not adaptive"


class Adaptive(Handler):
    """Handles a key where speculation is adaptive."""

    def __init__(self, stages: Stages) -> None:
        self._stages, self._controller = stages, stages.controller


class ForceSteps(Adaptive):
    """``adaptive_force_steps``: a `Hold`."""

    def problem(self, key: str, value: Any) -> str | None:
        if isinstance(value, Hold) and (value.steps is None or value.steps in self._controller.states.tiers):
            return None
        built = ", ".join(map(str, self._controller.states.tiers))
        return f"{key}: got {value!r}; expected one of {built}, or null to release"

    def apply(self, key: str, value: Hold) -> None:
        before = self._controller.forced_steps
        self._controller.force_steps(value.steps, value.lease)
        if value.lease is None or value.steps != before:  # renewals are not logged
            logger.info("adaptive: draft steps %s", "released" if value.steps is None else f"held at {value.steps}")


class LeaseOver(Adaptive):
    """``adaptive_force_lease_over``: the number of a hold that ends, if it was not renewed."""

    def problem(self, key: str, value: Any) -> str | None:
        # The number of an expired hold changes nothing.
        return None if isinstance(value, int) else f"{key}: got {value!r}; expected the number of a hold"

    def apply(self, key: str, value: Any) -> None:
        if self._controller.end_lease(value):
            held = self._controller.forced_steps
            now = "released" if held is None else f"held at {held} again"
            logger.info("adaptive: draft steps %s: the hold was not renewed", now)


class ExtendEvery(Adaptive):
    """``adaptive_zero_step_extend_every``: how many zero-step rounds share one draft extend."""

    def problem(self, key: str, value: Any) -> str | None:
        deferred = self._stages.of(LeftForLater)
        return extend_problem(value, deferred[0].snapshot() if deferred else None)

    def apply(self, key: str, value: Any) -> None:
        (deferred,) = self._stages.of(LeftForLater)
        deferred.set_every(value)
        logger.info("adaptive: at zero steps the draft's extend runs every %d rounds", value)


def extend_problem(value: Any, zero_steps: Mapping[str, Any] | None) -> str | None:
    """Return why *value* of EXTEND_KEY is refused where /server_info says *zero_steps*; None if it is accepted."""
    if zero_steps is None or zero_steps["reason"] is not None:
        return f"{EXTEND_KEY}: this server runs the draft's extend in every zero-step round"
    most = zero_steps["most_extend_every"]
    if not is_integer(value, 1, most):
        return f"{EXTEND_KEY}: got {shown(value)}; expected an integer from 1 to {most}"
    return None


class WarmUpSwitch(Adaptive):
    """``adaptive_warm_up``: BEGIN for each pass of the warm-up, and END.

    In SGLang, serving begins when the scheduler enters its loop, before any request can run. Here it begins when the
    warm-up ends, because the warm-up is meant to load kernels.
    """

    def problem(self, key: str, value: Any) -> str | None:
        return None if value in (BEGIN, END) else f"{key}: got {value!r}; expected {BEGIN} or {END}"

    def apply(self, key: str, value: Any) -> None:
        from sglang.srt.utils import triton_load_watch

        if value == BEGIN:
            triton_load_watch._serving_started = False
            self._controller.warm_up.begin()
        else:
            self._controller.end_warm_up()
            triton_load_watch.mark_serving_started()


class TakeReport(Adaptive):
    """``adaptive_audit``: the `Report` on a finished request that was decoded again."""

    def problem(self, key: str, value: Any) -> str | None:
        if self._stages.of(Audits) and isinstance(value, Report):
            return None
        return f"{key}: got {value!r}; expected a report of the HTTP server's audit"

    def apply(self, key: str, value: Report) -> None:
        (audits,) = self._stages.of(Audits)
        audits.count(value)


class Reconfigure(Adaptive):
    """``adaptive_config``: a new configuration, as a `Change`."""

    _successor: tuple[AdaptiveConfig, AdaptivePolicy, CostSharing] | None = None
    """Set by ``problem`` for ``apply``; None where nothing changes."""

    def problem(self, key: str, value: Any) -> str | None:
        """Check the change and build its policy, so that ``apply`` cannot fail.

        A watched file equal to the active configuration changes nothing: every HTTP worker watches it, and only the
        first to report it matters.
        """
        from sglang.srt.runtime_context import get_spec

        if not isinstance(value, Change):
            return f"{key}: got {value!r}; expected a configuration sent through the HTTP server"
        controller, self._successor = self._controller, None
        try:
            running = controller.config() or {}
            config = fitted(check_config(value.config, value.source), max(controller.states.tiers), get_spec())
            config = config.after_start(value.config, running)
            if value.by == WATCH and config.as_dict() == running:
                return None
            built = controller.states.captured
            config.require_built(built, running)
            for lookups in self._stages.of(LookupRounds):
                lookups.require(config)
            policy = build_successor(config, controller.policy, controller.states.live.steps, built)
            self._successor = config, policy, CostSharing(policy)
        except ConfigError as error:
            return str(error)
        except Exception as error:
            logger.exception("adaptive: a policy could not be made from the configuration of %s", value.by)
            return f"{key}: {type(error).__name__}: {error}"
        return None

    def apply(self, key: str, value: Change) -> None:
        """Replace the policy, the draft extend interval, the audit and the trace, unless nothing changes."""
        if self._successor is None:
            return
        controller = self._controller
        config, policy, sharing = self._successor
        before, retiring = controller.config() or {}, controller.share_cost
        controller.replace_policy(policy, by=value.by, share_cost=sharing, profile_saved_at=sharing.saved_at)
        if isinstance(retiring, CostSharing):
            retiring.retire()
        self._stages.tell(Stage.reconfigured, config)
        trace_rounds(controller, config.trace)
        if ranks.is_first():
            changes = describe_change(before, controller.config() or {})
            logger.info("adaptive: configuration changed by %s: %s", printable(value.by), changes)


_HANDLERS: Mapping[str, type[Adaptive]] = {
    FORCE_KEY: ForceSteps,
    LEASE_OVER_KEY: LeaseOver,
    CONFIG_KEY: Reconfigure,
    WARM_UP_KEY: WarmUpSwitch,
    EXTEND_KEY: ExtendEvery,
    REPORT_KEY: TakeReport,
}


def handlers() -> dict[str, Handler]:
    """Return this package's handlers by key."""
    stages = current()
    return {key: NotAdaptive() if stages is None else handler(stages) for key, handler in _HANDLERS.items()}
