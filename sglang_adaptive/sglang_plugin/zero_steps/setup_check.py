"""Checks whether the draft extend, or a block drafter's append, can be deferred at zero steps.

Trees, pipeline stages, HiSparse, LoRA and the KV canary do not come here: a server with one of them does not adapt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_adaptive.sglang_plugin.workers.choice import is_eagle_or_standalone


def why_every_round(worker: Any, tiers: Sequence[int]) -> str | None:
    """Return why the draft extend has to run in every zero-step round; None where it can be deferred."""
    from sglang.srt.environ import envs

    if envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND.get():
        return "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND is set, and leaves it out altogether"
    return _of_the_tiers(tiers) or _of_the_worker(worker) or _of_the_server()


def why_every_append(pool: Any, tiers: Sequence[int]) -> str | None:
    """Return why a block drafter's keys and values have to be made in every zero-step round; *pool* is of requests."""
    return _of_the_tiers(tiers) or _of_the_pool(pool) or _of_the_server()


def _of_the_tiers(tiers: Sequence[int]) -> str | None:
    return "there is no other tier to resume at" if len(tiers) < 2 else None


def _of_the_pool(pool: Any) -> str | None:
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

    return None if type(pool) is ReqToTokenPool else f"a {type(pool).__name__} keeps more of a request than its KV"


def _of_the_worker(worker: Any) -> str | None:
    draft = worker._draft_worker
    if worker.speculative_algorithm.is_frozen_kv_mtp():
        return "a Frozen-KV draft keeps no KV, so its extend runs no model"
    if not is_eagle_or_standalone(worker):
        return f"{type(worker).__name__} is not understood"
    if (reason := _of_the_pool(draft.req_to_token_pool)) is not None:
        return reason
    if draft.draft_runner.model_config.model_is_mrope:
        return "the model's positions are multimodal"
    if draft.seed_dsa_topk_from_draft_extend:
        return "the draft's extend also selects for sparse attention"
    return None


def _of_the_server() -> str | None:
    from sglang.srt.runtime_context import get_disagg, get_parallel, get_schedule, get_serving, get_spec

    reasons = {
        "rejection sampling needs the draft's distribution": get_spec().speculative_use_rejection_sampling,
        "--enable-mixed-chunk extends running requests together with prompts": get_schedule().enable_mixed_chunk,
        "--enable-streaming-session keeps a request's KV for its next turn": get_serving().enable_streaming_session,
        "prefill and decode are disaggregated": get_disagg().disaggregation_mode != "null",
        "attention runs data parallel": get_parallel().attn_dp_size > 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
