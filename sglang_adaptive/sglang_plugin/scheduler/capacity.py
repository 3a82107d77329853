"""Serves what the launch line serves with fixed steps, near the end of a request's context and of the KV cache.

SGLang 0.5.23 takes a round's draft tokens off every request's context, and twice as many KV slots must be free for
each request. With adaptive speculation both are those of the most steps. So prompts would be refused, and requests
aborted, that the same line serves without it. Here both are those of the launch steps, and a round is only as deep as
its requests have room for.

The row of slots that SGLang keeps for a request was too short, besides: with pages of one token it has 4 + n places
beyond the context for n draft tokens, and gets slots for up to 2 n - 4. From 9 draft tokens on the last ones went into
the next request's row; on a CPU that ended the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.sglang_plugin.hooking.fallback import Fallback
from sglang_adaptive.sglang_plugin.scheduler.worker import controller_of

_fallback = Fallback("adaptive: rounds are as deep at the end of a context as elsewhere from now on")
_reserve: int | None = None
"""KV slots to reserve for each request of the coming round beyond its tokens; None for SGLang's number."""


def reserved_tokens(original: Callable[[], int]) -> int:
    """Around SGLang's compute_num_reserved_tokens: take the draft tokens of the launch off a request's context."""
    from sglang.srt.runtime_context import get_spec

    spec = get_spec()
    with spec.override(max_speculative_num_draft_tokens=spec.speculative_num_draft_tokens):
        return original()


def write_for_tokenizer_workers(original: Callable[..., Any], port_args: Any, server_args: Any, *args: Any) -> Any:
    """Around write_data_for_multi_tokenizer: tell HTTP workers, which load no plugins, the launch's as the most."""
    from sglang.srt.arg_groups.overrides import max_speculative_num_draft_tokens, resolving_view

    most = max_speculative_num_draft_tokens(server_args)
    server_args._max_speculative_num_draft_tokens = resolving_view(server_args).speculative_num_draft_tokens
    try:
        return original(port_args, server_args, *args)
    finally:
        server_args._max_speculative_num_draft_tokens = most


def places_beyond_context(original: Callable[[], int]) -> int:
    """Around get_req_to_token_extra_context_len: as many as a request near the end of its context may get slots for."""
    from sglang.srt.mem_cache import allocation_sizing

    slots = allocation_sizing.get_alloc_reserve_per_decode() + allocation_sizing.get_alloc_page_size()
    return max(original(), int(slots) - 1)


def alloc_reserve(original: Callable[[], int]) -> int:
    """Around get_alloc_reserve_per_decode: a round that must be shallow needs fewer slots."""
    return original() if _reserve is None else _reserve


def update_running_batch(original: Callable[..., Any], scheduler: Any, batch: Any) -> Any:
    """Around the scheduler's update_running_batch: note the most steps that the coming round has room for."""
    controller = controller_of(scheduler.draft_worker)
    if controller is None or batch.is_empty():
        return original(scheduler, batch)
    controller.most_steps = reserve = None
    if not _fallback.in_use:
        with _fallback:
            controller.most_steps, reserve = _room(controller, scheduler, batch)
    with _reserving(reserve):
        return original(scheduler, batch)


def _room(controller: AdaptiveController, scheduler: Any, batch: Any) -> tuple[int | None, int | None]:
    """Return the most steps for a round of *batch*, and the KV slots that each request needs beyond its tokens then.

    None stands for any steps, and for SGLang's number.
    """
    widest, live = controller.tiers[-1], controller.worker.speculative_num_steps
    # With overlap the round before may be running, and its tokens are not counted yet. The last place stays free for
    # the round that may follow a request's last one before its end is known.
    behind = live + 1 if batch.enable_overlap else 0
    longest = max([req.kv.kv_committed_len for req in batch.reqs]) + behind
    room = scheduler.model_config.context_len - 2 - longest
    most = room if room < widest else None
    launch = controller.launch_steps
    if launch == widest or _fits(batch, 3 * (widest + 1)):
        return most, None
    return launch if most is None else min(most, launch), 2 * (max(live, launch) + 1)


def _fits(batch: Any, slots: int) -> bool:
    """Whether each request of *batch* can have *slots* more KV slots; True with a pool of several kinds of layers.

    After a round of the most steps, three times its draft tokens leave enough for rounds of the launch steps.
    """
    allocator = batch.token_to_kv_pool_allocator
    if type(allocator) not in _known_allocators():
        return True
    free = allocator.available_size() + batch.tree_cache.evictable_size()
    if free >= len(batch.reqs) * (slots + allocator.page_size):
        return True
    with _reserving(slots):
        return bool(batch.check_decode_mem())


@cache
def _known_allocators() -> tuple[type, ...]:
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

    return TokenToKVPoolAllocator, PagedTokenToKVPoolAllocator


@contextmanager
def _reserving(slots: int | None) -> Iterator[None]:
    """Let SGLang reserve *slots* for each request beyond its tokens; None for its own number."""
    global _reserve
    _reserve = slots
    try:
        yield
    finally:
        _reserve = None
