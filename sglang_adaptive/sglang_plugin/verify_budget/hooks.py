"""The hooks of packed verification, and the one PackedRounds of a scheduler's process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang_adaptive.sglang_plugin.hooking.fallback import Fallback
from sglang_adaptive.sglang_plugin.scheduler.worker import controller_of
from sglang_adaptive.sglang_plugin.verify_budget import chances, greedy
from sglang_adaptive.sglang_plugin.verify_budget.packed_input import packed_input
from sglang_adaptive.sglang_plugin.verify_budget.packed_rounds import PackedRounds
from sglang_adaptive.sglang_plugin.verify_budget.setup_check import (
    FORCE,
    forced_budget,
    longest_row,
    needs_graphs,
    state_of,
    why_rectangles,
)
from sglang_adaptive.sglang_plugin.verify_budget.target_graphs import TargetGraphs, note_longest

logger = logging.getLogger(__name__)

_live: PackedRounds | None = None
"""One a process, because SGLang's verify functions do not know the worker."""
_why_not: str | None = None
"""Why this process packs no rounds although it was asked to."""
_rectangles = Fallback("adaptive: all requests of a batch verify equally many drafts from now on")


def live() -> PackedRounds | None:
    """Return what packs the rounds of this process; None where all requests verify alike."""
    return _live


def snapshot() -> dict[str, Any]:
    """Return for /server_info the rounds that were packed; or why none is."""
    return {"reason": _why_not, "packed_rounds": 0 if _live is None else _live.rounds}


def install(result: None, worker: Any) -> None:
    """After EAGLEWorkerV2.init_cuda_graphs: pack rounds from now on, where the setup allows it."""
    global _live, _why_not
    controller = controller_of(worker)
    if controller is None:
        return
    _why_not = why_rectangles(worker)
    if _why_not is not None:
        logger.warning("adaptive: all requests of a batch verify equally many drafts: %s", _why_not)
        return
    runner, forced = worker.target_worker.model_runner, forced_budget()
    graphs = TargetGraphs(runner, lambda steps: state_of(worker, steps)) if needs_graphs(runner) else None
    if forced is None:
        controller.allow_budgets()
    else:
        logger.warning("adaptive: at most %d drafts a request are verified, on average, because of %s", forced, FORCE)
    _live = PackedRounds(
        worker,
        lambda: forced or controller.budget,
        lambda: controller.calibration.exponent,
        graphs,
        controller.tiers,
    )


def bind_metadata(
    result: Any, backend: Any, bs: int, num_tokens: int, encoder_lens: Any, forward_mode: Any, *args: Any, **kwargs: Any
) -> Any:
    """After fa3's metadata of a graph is made, before its capture: let graphs of `budget` steps take longer rows."""
    if forward_mode.is_target_verify() and backend.topk <= 1 and not backend.is_draft_runner:
        longest = longest_row(backend.speculative_num_draft_tokens - 1)
        if longest is not None:
            note_longest(result[0], backend, longest)
    return result


def note_output(result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    """After a forward pass: keep the draft's logits, for the chances of its tokens."""
    chances.note_output(runner, result.logits_output)


def capture_draft(original: Callable[..., Any], graphs: Any, *args: Any, **kwargs: Any) -> Any:
    """Around the capture of a graph of the draft's steps: let it fill in the chances of its tokens."""
    with chances.capturing(graphs):
        return original(graphs, *args, **kwargs)


def draft_forward(original: Callable[..., Any], draft: Any, forward_batch: Any) -> Any:
    """Around the draft's steps, also while they are captured: keep the chance that it gives each of its tokens."""
    asked = chances.is_capturing() or (_live is not None and draft is _live.draft)
    if not asked or draft.topk != 1 or forward_batch.forward_mode.is_idle():
        return original(draft, forward_batch)
    result, found = chances.drafted(original, draft, forward_batch)
    if _live is not None and draft is _live.draft:
        _live.note_drafts(found)
    return result


def draft_replayed(result: Any, graphs: Any, forward_batch: Any) -> Any:
    """After a replay of the draft's graph: keep the chances that it filled in."""
    if _live is not None and graphs is _live.draft.cuda_graph_runner and not forward_batch.forward_mode.is_idle():
        found = chances.replayed(graphs, forward_batch.batch_size)
        if found is not None:
            _live.note_drafts(found)
    return result


def extend_replayed(result: Any, graphs: Any, *args: Any, **kwargs: Any) -> Any:
    """After a replay of the draft extend's graph: keep its logits, for the chances of the next round's first drafts."""
    chances.note_output(graphs.model_runner, result)
    return result


def extend_for_decode(original: Callable[..., None], draft: Any, batch: Any, result: Any, **kwargs: Any) -> None:
    """Around the draft extend after a verify pass: give the next round's first drafts their chances.

    SGLang puts 1 in their stead for chains. A zero-step round, whose extend may be deferred, leaves the 1.
    """
    if _live is None or draft is not _live.draft or not draft.speculative_num_steps:
        return original(draft, batch, result, **kwargs)
    # The outputs, not their chances: SGLang selects each request's last accepted token in them only afterwards.
    _live.attach(result)
    with chances.watching(draft.draft_runner, lambda output: output) as outputs:
        original(draft, batch, result, **kwargs)
    if outputs and not batch.forward_mode.is_idle():
        result.next_draft_input.topk_p = chances.of_output(outputs[-1])
    return None


def prepare_for_verify(
    original: Callable[..., Any], verify_input: Any, req_to_token_pool: Any, batch: Any, target_worker: Any
) -> Any:
    """Around eagle_prepare_for_verify: let the target read the likeliest drafts alone, packed.

    All that follows in the round reads the rectangle: the chains of *verify_input* end at their last verified token,
    and the batch keeps the slots of all its tokens, which the draft extend writes.
    """
    rounds, packing = _live, None
    if rounds is not None and not batch.forward_mode.is_idle():
        with _rectangles:
            packing = rounds.packing(verify_input)
            if packing is not None:
                slots = _slots(verify_input, req_to_token_pool, batch)
                packed = packed_input(verify_input, packing, slots, rounds.padded_tokens(packing))
                rounds.borrow_graphs(packing)
        _stop_after_an_error()
    if packing is None or _live is None:
        return original(verify_input, req_to_token_pool, batch, target_worker)
    batch.spec_info = packed
    prepared = original(packed, req_to_token_pool, batch, target_worker)
    if not prepared[1]:
        # Without a graph the backend of all steps has room for the rows; that of fewer has not.
        _live.give_graphs_back()
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


def sample(
    original: Callable[..., Any], verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any = None,
    *more: Any, watermark_state: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """Around SGLang's eagle_sample: spread the target's logits, or its choices, and hidden states to the rectangle."""
    if _live is not None:
        packing = _live.take(verify_input)
        if packing is not None:
            if logits_output.hidden_states is not None:
                logits_output.hidden_states = packing.spread(logits_output.hidden_states)
            if greedy.is_plain(batch, grammar_mask, watermark_state):
                found = greedy.accept(verify_input, packing.spread(logits_output.next_token_logits.argmax(-1)))
                _look(verify_input, found[1] - 1)
                return found
            logits_output.next_token_logits = packing.spread(logits_output.next_token_logits)
    options["watermark_state"] = watermark_state
    found = original(verify_input, batch, logits_output, grammar_mask, *more, **options)
    _look(verify_input, found[1] - 1)
    return found


def _look(verify_input: Any, accepted: Any) -> None:
    if _live is not None:
        with _rectangles:
            _live.look(verify_input, accepted)
        _stop_after_an_error()


def _stop_after_an_error() -> None:
    """Verify all drafts of each round from now on, if what chooses or tells of them has failed."""
    global _live, _why_not
    if _live is None or not _rectangles.in_use:
        return
    _live.give_graphs_back()
    controller = controller_of(_live.worker)
    if controller is not None:
        controller.allow_budgets(False)
    _live, _why_not = None, "an error, which the log has"
