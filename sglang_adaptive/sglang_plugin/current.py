"""The one `Round` of a scheduler's process. Hooks find it here, because SGLang's functions do not know it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_adaptive.policy.base import AdaptivePolicy
    from sglang_adaptive.sglang_plugin.round import Round
    from sglang_adaptive.sglang_plugin.workers.dspark import LearntTable

_round: Round | None = None
_learnt_table: LearntTable | None = None


def current() -> Round | None:
    """Return the round of this process; None where speculation is static."""
    return _round


def begin(worker: Any, policy: AdaptivePolicy) -> Round:
    """Make the round of this process, with a controller on SGLang's *worker* that starts with *policy*."""
    from sglang_adaptive.sglang_plugin.audit_scheduler import Audits
    from sglang_adaptive.sglang_plugin.configuration import configuration
    from sglang_adaptive.sglang_plugin.reporting.finished_texts import FinishedTexts
    from sglang_adaptive.sglang_plugin.round import Round
    from sglang_adaptive.sglang_plugin.start.controller import make_controller

    assert _round is None, "this process has a round already"
    made = Round(worker, make_controller(worker, policy))
    made.texts = FinishedTexts(made.controller)
    made.audits = Audits(made.controller, configuration().audit)
    use(made)
    return made


def use(made: Round | None) -> None:
    """Make *made* the round of this process, None for no round. Tests replace one by another; a server does not."""
    global _round
    _round = made


def learnt_table() -> LearntTable | None:
    """Return what this process learns for DSPARK's planner; None with any other drafts."""
    return _learnt_table


def learns(table: LearntTable | None) -> None:
    """Make *table* the one of this process, None for none."""
    global _learnt_table
    _learnt_table = table
