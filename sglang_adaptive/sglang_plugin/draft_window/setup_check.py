"""Checks whether the draft can attend to sinks and a window, and chooses their sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sglang_adaptive.policy.config import leaves_out
from sglang_adaptive.sglang_plugin.configuration import configuration
from sglang_adaptive.sglang_plugin.draft_window.rows import Shape, are_doubled
from sglang_adaptive.sglang_plugin.model_config import model_config
from sglang_adaptive.sglang_plugin.workers.choice import is_eagle

BACKENDS = frozenset(
    {
        *("TorchRefDraftBackend", "FlashAttentionMultiStepBackend"),
        *("FlashInferMultiStepDraftBackend", "TritonMultiStepDraftBackend"),
    }
)
"""The draft's attention backend classes that read a request as a row of the slot table and a length."""


def shape_or_reason(worker: Any) -> Shape | str:
    """Return what *worker*'s draft sees of a long request, or a phrase that says why it has to see all of it."""
    reason = next(_why_not(worker), None)
    return _shape(worker) if reason is None else reason


def _shape(worker: Any) -> Shape | str:
    from sglang.srt.runtime_context import get_schedule, max_speculative_num_draft_tokens

    config, draft = configuration(), worker._draft_worker.draft_runner.model_config.model_path
    # SGLang writes the target's context into the draft's configuration, so the file is read again.
    trained = config.draft_trained_on or model_config(draft).get("max_position_embeddings")
    context = worker.target_worker.model_runner.model_config.context_len
    if trained is None:
        return "its config.json does not say on how many tokens it was trained: set draft_trained_on"
    if context <= trained:
        return f"it was trained on {trained} tokens, and no request has more than {context}"
    window, page = config.window_of(trained), get_schedule().page_size
    if not leaves_out(window, trained, page):
        return f"a window of {window} tokens leaves out none of the {trained} that it was trained on"
    return Shape.of(trained, window, page, max_speculative_num_draft_tokens())


def _why_not(worker: Any) -> Iterator[str]:
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.runtime_context import get_parallel, get_spec

    if not is_eagle(worker):
        yield f"{type(worker).__name__} is for drafts other than EAGLE's"
    draft, parallel = worker._draft_worker, get_parallel()
    runner, pool, backend = draft.draft_runner, draft.req_to_token_pool, draft.draft_attn_backend
    if runner.use_mla_backend:
        yield "it has multi-head latent attention (MLA)"
    if (runner.sliding_window_size or 0) > 0:
        yield f"it has its own window of {runner.sliding_window_size} tokens"
    if runner.kv_index_translator.is_translating:
        yield "unified memory names KV slots differently"
    if type(pool) is not ReqToTokenPool or not are_doubled(pool):
        yield f"a {type(pool).__name__} keeps more of a request than its KV"
    if backend is not None and type(backend).__name__ not in BACKENDS:
        yield f"{type(backend).__name__} has not been shown to read shortened requests"
    if get_spec().speculative_draft_window_size:
        yield "--speculative-draft-window-size gives it a window already"
    if parallel.attn_dp_size > 1:
        yield "attention runs data parallel"
    if parallel.attn_cp_size > 1 or parallel.attn_dcp_size > 1:
        yield "the keys of a request are spread over ranks"
