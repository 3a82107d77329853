"""The one `Round` of a scheduler process. Hooks find it here, because SGLang's functions do not carry it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_adaptive.policy.base import AdaptivePolicy
    from sglang_adaptive.sglang_plugin.round import Round

_round: Round | None = None


def current() -> Round | None:
    """Return the round of this process; None where speculation is static."""
    return _round


def begin(worker: Any, policy: AdaptivePolicy) -> Round:
    """Create the round of this process, with a controller for SGLang's *worker* that starts with *policy*."""
    from sglang_adaptive.sglang_plugin.audit_scheduler import Audits
    from sglang_adaptive.sglang_plugin.configuration import configuration
    from sglang_adaptive.sglang_plugin.round import Round
    from sglang_adaptive.sglang_plugin.start.controller import make_controller

    assert _round is None, "this process has a round already"
    made = Round(worker, make_controller(worker, policy))
    made.audits = Audits(made.controller, configuration().audit)
    use(made)
    return made


def use(made: Round | None) -> None:
    """Set the round of this process, or None. Tests replace one round with another; a server does not."""
    global _round
    _round = made
