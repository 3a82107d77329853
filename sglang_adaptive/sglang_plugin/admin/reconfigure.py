"""Applies a new configuration in a scheduler, between two rounds.

SGLang's message has numbers under names. A name is a string, so the launcher packs the configuration into a name, and
it is unpacked before the message is handled.

All tensor-parallel ranks change at the same round, because SGLang's loop receives messages once an iteration, before it
chooses a batch. Rank 0 reads its socket and broadcasts the list (``SchedulerRequestReceiver.recv_requests``), and every
rank handles the whole list before it goes on. The result depends on the message and on state that is equal on all
ranks; round times, which are not, come from rank 0. Each data-parallel replica gets the message and changes
independently.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from typing import Any

from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.config import AdaptiveConfig, check_config, describe_change
from sglang_adaptive.policy.errors import ConfigError, printable
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.sglang_plugin.current import current
from sglang_adaptive.sglang_plugin.start.controller import trace_rounds
from sglang_adaptive.sglang_plugin.start.policies import build_successor, fitted
from sglang_adaptive.sglang_plugin.start.profiles import CostSharing
from sglang_adaptive.sglang_plugin.verify_budget import setup_check as verify_budget

logger = logging.getLogger(__name__)

CONFIG_KEY = "adaptive_config"
WATCH = "watch"
"""``Change.by`` of a watched file."""
PACKED = f"{CONFIG_KEY} "
"""Prefix of a name that has a packed change."""


@dataclass(frozen=True, slots=True)
class Change:
    """A request to run another configuration."""

    config: dict[str, Any]
    """The configuration object, as sent."""

    source: str
    """Its source, for error lines: the file, or CONFIG_KEY."""

    by: str
    """Who sent it: a client's address, "SIGHUP" or WATCH."""

    def pack(self) -> dict[str, int]:
        """Return the ``server_args`` of SGLang's message."""
        return {PACKED + json.dumps(asdict(self)): 1}

    @classmethod
    def unpacked(cls, name: str) -> Change | None:
        """Return the change packed in *name*; None when it has none, as names from other clients."""
        try:
            change = cls(**json.loads(name.removeprefix(PACKED)))
        except (ValueError, TypeError, RecursionError):
            return None
        texts = isinstance(change.source, str) and isinstance(change.by, str)
        return change if isinstance(change.config, dict) and texts else None


def unpack(recv_req: Any) -> None:
    """Put a change that is packed in SGLang's message under CONFIG_KEY."""
    for name in [name for name in recv_req.server_args if name.startswith(PACKED)]:
        change = Change.unpacked(name)
        if change is not None:
            del recv_req.server_args[name]
            recv_req.server_args[CONFIG_KEY] = change


class Reconfigure:
    """Handler of ``adaptive_config``: SGLang calls ``validate``, then ``apply``."""

    def __init__(self, controller: AdaptiveController | None) -> None:
        self._controller = controller
        self._successor: tuple[AdaptivePolicy, CostSharing] | None = None

    def validate(self, key: str, value: Any) -> None:
        """Check the change and build its policy, so that ``apply`` cannot fail. Raises SGLang's UpdateRejected.

        A watched file that says what is in force changes nothing: each HTTP worker watches it, and all but one come
        late.
        """
        from sglang.srt.managers.scheduler_components.internal_state import UpdateRejected

        controller = self._controller
        if controller is None:
            raise UpdateRejected(f"{key}: this server's speculation is not adaptive")
        if not isinstance(value, Change):
            raise UpdateRejected(f"{key}: got {value!r}; expected a configuration, through the HTTP server")
        self._successor = None
        try:
            config = fitted(check_config(value.config, value.source), max(controller.tiers))
            if value.by == WATCH and config.as_dict() == _config_of(controller):
                return
            controller.built.require(config)
            verify_budget.require_asked(config)
            live = controller.worker.speculative_num_steps
            policy = build_successor(config, controller.params, live, controller.built)
            self._successor = policy, CostSharing(policy)
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
        policy, sharing = self._successor
        before, retiring = _config_of(controller), controller.share_cost
        controller.replace_policy(policy, by=value.by, share_cost=sharing, profile_saved_at=sharing.saved_at)
        if isinstance(retiring, CostSharing):
            retiring.retire()
        config = check_config(value.config, value.source)
        now = current()
        if now is not None and now.deferred is not None:
            now.deferred.set_every(config.zero_step_extend_every)
        if now is not None and now.audits is not None:
            now.audits.change(config.audit)
        trace_rounds(controller, config.trace)
        if _is_first_rank():
            changes = describe_change(before, _config_of(controller))
            logger.info("adaptive: configuration changed by %s: %s", printable(value.by), changes)


def _config_of(controller: AdaptiveController) -> dict[str, Any]:
    config = getattr(controller.params, "config", None)
    return config.as_dict() if isinstance(config, AdaptiveConfig) else {}


def _is_first_rank() -> bool:
    from sglang.srt.runtime_context import get_parallel

    return bool(get_parallel().tp_group.rank_in_group == 0)
