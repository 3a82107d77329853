"""Checks whether the draft can attend to sinks and a window, and how many tokens these are."""

from __future__ import annotations

from typing import Any

from sglang_adaptive.policy.config import AUTO
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
"""Classes of the draft's attention backends that read a request as a row of the slot table and a length."""


def shape_or_reason(worker: Any) -> Shape | str:
    """Return what the draft of *worker* sees of a long request; a phrase where it has to attend to all of it."""
    if not is_eagle(worker):
        return f"{type(worker).__name__} is for drafts of other kinds than EAGLE's"
    return _of_the_draft(worker._draft_worker) or _of_the_server() or _shape(worker)


def window_of(trained: int) -> int:
    """Return the window, in tokens, for a draft that was trained on *trained* tokens."""
    asked = configuration().draft_window
    return trained // 2 if asked == AUTO else int(asked or 0)


def trained_length(draft: str | None) -> int | None:
    """Return the tokens that *draft*, a model's folder or name, was trained on; None where nothing says it.

    SGLang writes the target's context into the draft's configuration, so the file is read again.
    """
    found: int | None = configuration().draft_trained_on
    return found or model_config(draft).get("max_position_embeddings")


def _shape(worker: Any) -> Shape | str:
    from sglang.srt.runtime_context import get_schedule, max_speculative_num_draft_tokens

    trained = trained_length(worker._draft_worker.draft_runner.model_config.model_path)
    context = worker.target_worker.model_runner.model_config.context_len
    if trained is None:
        return "its config.json does not say on how many tokens it was trained: set draft_trained_on"
    if context <= trained:
        return f"it was trained on {trained} tokens, and no request has more than {context}"
    found = Shape.of(trained, window_of(trained), get_schedule().page_size, max_speculative_num_draft_tokens())
    if found.sinks + found.window + found.page > trained:
        return f"a window of {found.window} tokens leaves out none of the {trained} that it was trained on"
    return found


def _of_the_draft(draft: Any) -> str | None:
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

    runner, pool, backend = draft.draft_runner, draft.req_to_token_pool, draft.draft_attn_backend
    if runner.use_mla_backend:
        return "it has multi-head latent attention (MLA)"
    if (runner.sliding_window_size or 0) > 0:
        return f"it has a window of its own, {runner.sliding_window_size} tokens"
    if runner.kv_index_translator.is_translating:
        return "unified memory names KV slots in another way"
    if type(pool) is not ReqToTokenPool or not are_doubled(pool):
        return f"a {type(pool).__name__} keeps more of a request than its KV"
    if backend is not None and type(backend).__name__ not in BACKENDS:
        return f"{type(backend).__name__} has not been shown to read shortened requests"
    return None


def _of_the_server() -> str | None:
    from sglang.srt.runtime_context import get_parallel, get_spec

    parallel = get_parallel()
    reasons = {
        "--speculative-draft-window-size gives it a window already": get_spec().speculative_draft_window_size,
        "attention runs data parallel": parallel.attn_dp_size > 1,
        "the keys of a request are spread over ranks": parallel.attn_cp_size > 1 or parallel.attn_dcp_size > 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
