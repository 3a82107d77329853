"""Checks whether drafts can be looked up."""

from __future__ import annotations

from typing import Any

from sglang_adaptive.sglang_plugin.workers.choice import is_eagle_or_standalone


def why_not(worker: Any) -> str | None:
    """Return why *worker* cannot verify drafts that are looked up; None where it can."""
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.runtime_context import get_parallel, get_spec

    draft, parallel = worker._draft_worker, get_parallel()
    if not is_eagle_or_standalone(worker):
        return f"{type(worker).__name__} has not been shown to verify them"
    if type(draft.req_to_token_pool) is not ReqToTokenPool:
        return f"a {type(draft.req_to_token_pool).__name__} keeps a state for each draft token"
    if worker._target_worker.model_runner.use_mla_backend or draft.draft_runner.use_mla_backend:
        return "latent attention (MLA) has not been shown to: fa3 faults in its passes of 16 rows a request"
    if draft.seed_dsa_topk_from_draft_extend:
        return "the draft's extend also selects for sparse attention"
    reasons = {
        "rejection sampling needs the draft's distribution": get_spec().speculative_use_rejection_sampling,
        "attention runs data parallel": parallel.attn_dp_size > 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
