"""The hooks of packed verification, and the one PackedRounds of a scheduler's process."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from sglang_adaptive.sglang_plugin.verify_budget.packed_rounds import PackedRounds, packed_input, top_chance
from sglang_adaptive.sglang_plugin.verify_budget.setup_check import FORCE, why_rectangles

logger = logging.getLogger(__name__)

_live: PackedRounds | None = None
"""One a process, because SGLang's verify functions do not know the worker."""


def live() -> PackedRounds | None:
    """Return what packs the rounds of this process; None where all requests verify alike."""
    return _live


def install(result: None, worker: Any) -> None:
    """After EAGLEWorkerV2.init_cuda_graphs: pack rounds from now on, where the setup allows it."""
    global _live
    reason = why_rectangles(worker)
    if reason is not None:
        logger.warning("adaptive: all requests of a batch verify equally many drafts: %s", reason)
        return
    _live = PackedRounds(worker, int(os.environ[FORCE]))
    logger.warning("adaptive: at most %d drafts a request are verified, on average, because of %s", _live.budget, FORCE)


def note_output(result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    """After a forward pass: keep the draft's logits, for the chances of its tokens."""
    if _live is not None:
        _live.note_output(runner, result.logits_output)


def draft_forward(original: Callable[..., Any], draft: Any, forward_batch: Any) -> Any:
    """Around the draft's steps: keep the chance that it gives each of its tokens."""
    if _live is None or draft is not _live.draft or forward_batch.forward_mode.is_idle():
        return original(draft, forward_batch)
    first = forward_batch.spec_info.topk_p
    with _live.watching() as outputs:
        drafted = original(draft, forward_batch)
    _live.note_drafts(first, outputs)
    return drafted


def extend_for_decode(original: Callable[..., None], draft: Any, batch: Any, result: Any, **kwargs: Any) -> None:
    """Around the draft extend after a verify pass: give the next round's first drafts their chances.

    SGLang puts 1 in their stead for chains. A zero-step round, whose extend may be deferred, leaves the 1.
    """
    if _live is None or draft is not _live.draft or not draft.speculative_num_steps:
        return original(draft, batch, result, **kwargs)
    with _live.watching() as outputs:
        original(draft, batch, result, **kwargs)
    if outputs and not batch.forward_mode.is_idle():
        # SGLang has left the logits of each request's last accepted token in the output.
        result.next_draft_input.topk_p = top_chance(outputs[-1].next_token_logits)
    return None


def prepare_for_verify(
    original: Callable[..., Any], verify_input: Any, req_to_token_pool: Any, batch: Any, target_worker: Any
) -> Any:
    """Around eagle_prepare_for_verify: let the target read the likeliest drafts alone, packed.

    All that follows in the round reads the rectangle: the chains of *verify_input* end at their last verified token,
    and the batch keeps the slots of all its tokens, which the draft extend writes.
    """
    packing = None if _live is None or batch.forward_mode.is_idle() else _live.packing(verify_input)
    if packing is None:
        return original(verify_input, req_to_token_pool, batch, target_worker)
    slots = _slots(verify_input, req_to_token_pool, batch)
    batch.spec_info = packed_input(verify_input, packing, slots)
    prepared = original(batch.spec_info, req_to_token_pool, batch, target_worker)
    batch.spec_info, batch.input_ids, batch.out_cache_loc = verify_input, verify_input.draft_token, slots
    packing.cut(verify_input.retrieve_next_token)
    return prepared


def _slots(verify_input: Any, req_to_token_pool: Any, batch: Any) -> Any:
    from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_uniform_func

    if verify_input.prepared_out_cache_loc is not None:
        return verify_input.prepared_out_cache_loc
    return assign_extend_cache_locs_uniform_func(
        req_pool_indices=batch.req_pool_indices,
        req_to_token=req_to_token_pool.req_to_token,
        start_offset=batch.seq_lens,
        batch_size=len(batch.req_pool_indices),
        draft_token_num=verify_input.draft_token_num,
        device=batch.device,
    )


def sample(verify_input: Any, batch: Any, logits_output: Any, *args: Any, **kwargs: Any) -> None:
    """Before SGLang's eagle_sample: spread the target's logits and hidden states to the rectangle."""
    if _live is not None:
        _live.spread(verify_input, logits_output)
