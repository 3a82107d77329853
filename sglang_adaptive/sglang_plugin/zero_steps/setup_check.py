"""Checks why the draft extend, or a block drafter's append, cannot be deferred at zero steps.

Trees, pipeline stages, HiSparse, LoRA and the KV canary need no check: a server with one of them does not adapt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sglang_adaptive.sglang_plugin.workers.choice import is_eagle_or_standalone


def why_every_round(worker: Any, tiers: Sequence[int]) -> Iterator[str]:
    """Yield why the draft extend has to run in every zero-step round; nothing if it can be deferred."""
    from sglang.srt.environ import envs

    draft = worker._draft_worker
    if envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND.get():
        yield "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND is set, which skips it altogether"
    yield from _of_the_tiers(tiers)
    if worker.speculative_algorithm.is_frozen_kv_mtp():
        yield "a Frozen-KV draft keeps no KV, so its extend runs no model"
    if not is_eagle_or_standalone(worker):
        yield f"{type(worker).__name__} is not understood"
    yield from _of_the_pool(draft.req_to_token_pool)
    if draft.draft_runner.model_config.model_is_mrope:
        yield "the model's positions are multimodal"
    if draft.seed_dsa_topk_from_draft_extend:
        yield "the draft's extend also selects for sparse attention"
    yield from _of_the_server()


def why_every_append(pool: Any, tiers: Sequence[int]) -> Iterator[str]:
    """Yield why a block drafter has to make keys and values in every zero-step round; *pool* is the request pool."""
    yield from _of_the_tiers(tiers)
    yield from _of_the_pool(pool)
    yield from _of_the_server()


def _of_the_tiers(tiers: Sequence[int]) -> Iterator[str]:
    if len(tiers) < 2:
        yield "there is no other tier to resume at"


def _of_the_pool(pool: Any) -> Iterator[str]:
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

    if type(pool) is not ReqToTokenPool:
        yield f"a {type(pool).__name__} keeps more of a request than its KV"


def _of_the_server() -> Iterator[str]:
    from sglang.srt.runtime_context import get_disagg, get_parallel, get_schedule, get_serving, get_spec

    if get_spec().speculative_use_rejection_sampling:
        yield "rejection sampling needs the draft's distribution"
    if get_schedule().enable_mixed_chunk:
        yield "--enable-mixed-chunk extends running requests together with prompts"
    if get_serving().enable_streaming_session:
        yield "--enable-streaming-session keeps a request's KV for its next turn"
    if get_disagg().disaggregation_mode != "null":
        yield "prefill and decode are disaggregated"
    if get_parallel().attn_dp_size > 1:
        yield "attention runs data parallel"
