"""KV slots of a running request, reserved for several rounds at once.

Before every round SGLang 0.5.23 tops each request's slots up to twice the widest tier: two copies to the device and a
kernel, which write to what the round before still reads and so wait for its end, for one slot a request at zero steps.
Here a request that is given slots is given AHEAD more of them, and rounds in which everybody still has what SGLang
would give them launch nothing. All of it is freed as SGLang frees it, by kv_allocated_len. Near the end of the pool,
of a request's row, and with pools of other kinds, requests get what SGLang gives them.
SGLANG_ADAPTIVE_RESERVE_AHEAD=0 in the server's environment leaves SGLang's way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_adaptive.sglang_plugin.hooking.fallback import Fallback
from sglang_adaptive.sglang_plugin.scheduler.worker import controller_of

AHEAD = 32
"""Slots that a request is given beyond SGLang's reserve, whenever it is given any."""

SPARE = 4
"""How many times what a batch could be given at once has to be free in the pool, or could be evicted."""

_controller: Any = None
"""The scheduler's adaptive controller, None where its depth is static."""

_batch: Any = None
"""The batch that slots are about to be reserved for, None elsewhere."""

_fallback = Fallback(
    "adaptive: slots are reserved for one round at a time from now on", "SGLANG_ADAPTIVE_RESERVE_AHEAD"
)


def install(result: None, worker: Any) -> None:
    """After a worker built its graphs: note who knows whether rounds are those of the warm-up."""
    global _controller
    _controller = controller_of(worker)


def prepare_for_decode(original: Callable[[Any], None], batch: Any) -> None:
    """Around SGLang's eagle_prepare_for_decode: leave out the reservation where nobody needs one."""
    global _batch
    if _controller is not None and _controller.warms_up:
        original(batch)  # for the kernel that writes slots, which has a variant for each power of two of requests
        return
    if _tried(_is_covered, batch):
        _prepare_the_rest(batch)
        return
    _batch = batch
    try:
        original(batch)
    finally:
        _batch = None


def decode_alloc_lens(original: Callable[..., Any], reqs: Any, *, reserve: int, page_size: int) -> Any:
    """Around page_aligned_decode_alloc_lens, as the above calls it: ask for more where there is enough."""
    more = 0 if _batch is None else _tried(_more, _batch, reserve)
    return original(reqs, reserve=reserve + more, page_size=page_size)


def _is_covered(batch: Any) -> bool:
    """Whether each request has the slots that SGLang would see to."""
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode

    reserve = get_alloc_reserve_per_decode()
    # A request has whole pages, so what is enough in tokens is enough in pages.
    return all(req.kv.kv_committed_len + reserve <= req.kv.kv_allocated_len for req in batch.reqs)


def _more(batch: Any, reserve: int) -> int:
    """Return how many slots beyond *reserve* a request of *batch* may be given."""
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

    allocator = batch.token_to_kv_pool_allocator
    if type(allocator) is not TokenToKVPoolAllocator:
        return 0
    longest = max(req.kv.kv_committed_len for req in batch.reqs)
    if longest + reserve + AHEAD > batch.req_to_token_pool.req_to_token.shape[1]:
        return 0
    free = allocator.available_size() + batch.tree_cache.evictable_size()
    return AHEAD if free >= SPARE * len(batch.reqs) * (reserve + AHEAD) else 0


def _prepare_the_rest(batch: Any) -> None:
    """Do what eagle_prepare_for_decode does beside the reservation."""
    batch.maybe_evict_swa()
    if batch.sampling_info.penalizer_orchestrator.is_required:
        batch.cumulate_penalty_output_tokens()
    for req in batch.reqs:
        req.decode_batch_idx += 1
    if batch.seq_lens_cpu is None:
        batch.max_seq_len_host = max(req.kv.kv_allocated_len for req in batch.reqs)


def _tried(ask: Callable[..., int], *about: Any) -> int:
    """Return what *ask* says, 0 from its first fault on."""
    if not _fallback.in_use:
        with _fallback:
            return ask(*about)
    return 0
