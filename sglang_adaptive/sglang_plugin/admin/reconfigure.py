"""Applies a new configuration in a scheduler, between two rounds.

All tensor-parallel ranks change at the same round, because SGLang's loop receives messages once an iteration, before it
chooses a batch. Rank 0 reads its socket and broadcasts the list (``SchedulerRequestReceiver.recv_requests``), and every
rank handles the whole list before it goes on. The result depends on the message and on state that is equal on all
ranks; round times, which are not, come from rank 0. Each data-parallel replica gets the message and changes
independently.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.config import AdaptiveConfig, check_config, describe_change
from sglang_adaptive.policy.errors import ConfigError, printable
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.sglang_plugin import ranks
from sglang_adaptive.sglang_plugin.current import current
from sglang_adaptive.sglang_plugin.start.controller import trace_rounds
from sglang_adaptive.sglang_plugin.start.policies import build_successor, fitted
from sglang_adaptive.sglang_plugin.start.profiles import CostSharing
from sglang_adaptive.sglang_plugin.verify_budget import setup_check as verify_budget

logger = logging.getLogger(__name__)

CONFIG_KEY = "adaptive_config"
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


class Reconfigure:
    """Handler of ``adaptive_config``: SGLang calls ``validate``, then ``apply``."""

    def __init__(self, controller: AdaptiveController | None) -> None:
        self._controller = controller
        self._successor: tuple[AdaptiveConfig, AdaptivePolicy, CostSharing] | None = None

    def validate(self, key: str, value: Any) -> None:
        """Check the change and build its policy, so that ``apply`` cannot fail. Raises SGLang's UpdateRejected.

        A watched file that says what is in force changes nothing: each HTTP worker watches it, and all but one come
        late.
        """
        from sglang.srt.managers.scheduler_components.internal_state import UpdateRejected
        from sglang.srt.runtime_context import get_spec

        controller = self._controller
        if controller is None:
            raise UpdateRejected(f"{key}: this server's speculation is not adaptive")
        if not isinstance(value, Change):
            raise UpdateRejected(f"{key}: got {value!r}; expected a configuration, through the HTTP server")
        self._successor = None
        try:
            config = fitted(check_config(value.config, value.source), max(controller.tiers), get_spec())
            if value.by == WATCH and config.as_dict() == _config_of(controller):
                return
            controller.built.require(config)
            verify_budget.require_asked(config)
            live = controller.worker.speculative_num_steps
            policy = build_successor(config, controller.params, live, controller.built)
            self._successor = config, policy, CostSharing(policy)
        except ConfigError as error:
            raise UpdateRejected(str(error)) from None
        except Exception as error:
            logger.exception("adaptive: a policy could not be made from the configuration of %s", value.by)
            raise UpdateRejected(f"{key}: {type(error).__name__}: {error}") from error

    def apply(self, key: str, value: Change) -> None:
        """Replace the policy, the interval of the draft extend, the audit and the trace, unless nothing changes."""
        controller = self._controller
        assert controller is not None, "validate came first"
        if self._successor is None:
            return
        config, policy, sharing = self._successor
        before, retiring = _config_of(controller), controller.share_cost
        controller.replace_policy(policy, by=value.by, share_cost=sharing, profile_saved_at=sharing.saved_at)
        if isinstance(retiring, CostSharing):
            retiring.retire()
        now = current()
        if now is not None and now.left_for_later is not None:
            now.left_for_later.set_every(config.zero_step_extend_every)
        if now is not None and now.audits is not None:
            now.audits.change(config.audit)
        trace_rounds(controller, config.trace)
        if ranks.is_first():
            changes = describe_change(before, _config_of(controller))
            logger.info("adaptive: configuration changed by %s: %s", printable(value.by), changes)


def _config_of(controller: AdaptiveController) -> dict[str, Any]:
    config = getattr(controller.params, "config", None)
    return config.as_dict() if isinstance(config, AdaptiveConfig) else {}
