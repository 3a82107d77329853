"""The hooks of deferred draft extends, and the one DeferredDraftExtend of a scheduler's process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang_adaptive.policy.config.config import load_config
from sglang_adaptive.sglang_plugin.scheduler.worker import controller_of
from sglang_adaptive.sglang_plugin.zero_steps.deferred_draft_extend import DeferredDraftExtend
from sglang_adaptive.sglang_plugin.zero_steps.setup_check import why_every_round

logger = logging.getLogger(__name__)

_live: DeferredDraftExtend | None = None
"""One a process, because SGLang does not say which worker a leaving request belongs to."""


def live() -> DeferredDraftExtend | None:
    """Return the object that defers draft extends in this process; None where SGLang runs them."""
    return _live


def install(result: None, worker: Any) -> None:
    """After EAGLEWorkerV2.init_cuda_graphs: defer draft extends from now on, where the setup allows it."""
    global _live
    controller = controller_of(worker)
    if controller is None or 0 not in controller.tiers:
        return
    try:
        reason = why_every_round(worker, controller.tiers)
    except Exception as error:
        logger.exception("adaptive: the setup could not be looked at")
        reason = f"{type(error).__name__}: {error}"
    if reason is not None:
        logger.info("adaptive: the draft's extend runs in every zero-step round: %s", reason)
        return
    from sglang.srt.runtime_context import get_spec

    every = load_config(get_spec().speculative_adaptive_config).zero_step_extend_every
    _live = DeferredDraftExtend(worker, controller.states, every)


def extend_for_decode(original: Callable[..., None], draft: Any, batch: Any, result: Any, **kwargs: Any) -> None:
    """Around the draft extend after a verify pass: defer it in a zero-step round."""
    if _live is not None and _live.applies(draft, batch):
        _live.after_verify(original, batch, result, **kwargs)
    else:
        original(draft, batch, result, **kwargs)


def catch_up(draft: Any, batch: Any, **kwargs: Any) -> None:
    """Before a round drafts: run the draft extend over the pending rows of its requests."""
    if _live is not None:
        _live.before_draft(draft, batch)


def watch_reads(worker: Any, batch: Any) -> None:
    """Before a zero-step round's verify input is built: clear the read event of the round before."""
    if _live is not None:
        _live.before_verify()


def owned_length(owned: int, req: Any) -> int:
    """After Req.owned_kv_len: leave the tokens with pending rows out of what the prefix cache keeps."""
    return owned if _live is None else _live.owned_length(owned, req)
