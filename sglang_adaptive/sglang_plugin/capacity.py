"""Accepts the same requests as fixed steps, near the end of a request's context and of the KV cache.

SGLang 0.5.23 subtracts a round's draft tokens from every request's context, and requires twice as many free KV slots
per request. With adaptive speculation both are based on the most steps, so SGLang would refuse prompts and abort
requests that the same launch line serves without it. Here both are based on the launch steps, and a round has only as
many steps as its requests have room for.

SGLang's row of slots for a request is also too short: with pages of one token it has 4 + n places beyond the context
for n draft tokens, and gets slots for up to 2 n - 4. From 9 draft tokens on, the last slots went into the next
request's row; on a CPU that ended the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.sglang_plugin.guard import Guard


def reserved_tokens(original: Callable[[], int]) -> int:
    """Return the tokens that SGLang's *original* subtracts from a request's context, for the draft tokens at launch."""
    from sglang.srt.runtime_context import get_spec

    spec = get_spec()
    with spec.override(max_speculative_num_draft_tokens=spec.speculative_num_draft_tokens):
        return original()


def write_for_tokenizer_workers(
    original: Callable[..., Any], port_args: Any, server_args: Any, *args: Any, **kwargs: Any
) -> Any:
    """Let SGLang's *original* tell HTTP workers, which load no plugins, the launch's draft tokens as the most."""
    from sglang.srt.arg_groups.overrides import max_speculative_num_draft_tokens, resolving_view

    most = max_speculative_num_draft_tokens(server_args)
    server_args._max_speculative_num_draft_tokens = resolving_view(server_args).speculative_num_draft_tokens
    try:
        return original(port_args, server_args, *args, **kwargs)
    finally:
        server_args._max_speculative_num_draft_tokens = most


def places_beyond_context(original: Callable[[], int]) -> int:
    """Return the places of a row beyond the context: as many as a request near its end may get slots for."""
    from sglang.srt.mem_cache import allocation_sizing

    slots = allocation_sizing.get_alloc_reserve_per_decode() + allocation_sizing.get_alloc_page_size()
    return max(original(), int(slots) - 1)


def slots_of_a_round(batch: Any, width: int) -> Any:
    """Return the KV slots of the next *width* tokens of each request in *batch*, [requests * width], on the device."""
    from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_uniform_func

    return assign_extend_cache_locs_uniform_func(
        req_pool_indices=batch.req_pool_indices,
        req_to_token=batch.req_to_token_pool.req_to_token,
        start_offset=batch.seq_lens,
        batch_size=batch.seq_lens.shape[0],
        draft_token_num=width,
        device=batch.device,
    )


class Capacity:
    """Limits the rounds of one scheduler to the room that their requests have."""

    def __init__(self, controller: AdaptiveController) -> None:
        self._controller = controller
        self._slots: int | None = None
        """KV slots to reserve for each request of the next round beyond its tokens; None for SGLang's number."""
        self.guard = Guard("capacity")

    def reserve(self, original: Callable[[], int]) -> int:
        """Return the slots to reserve: SGLang's *original* number, or fewer for a round with limited steps."""
        return original() if self._slots is None else self._slots

    def prepare(self, original: Callable[..., Any], scheduler: Any, batch: Any) -> Any:
        """Note the most steps that the next round of *batch* has room for, and prepare it with SGLang's *original*."""
        self._controller.most_steps, slots = None, None
        if not batch.is_empty():
            self._controller.most_steps, slots = self.guard.attempt(self._room, scheduler, batch) or (None, None)
        with self._reserving(slots):
            return original(scheduler, batch)

    def _room(self, scheduler: Any, batch: Any) -> tuple[int | None, int | None]:
        """Return the most steps for a round of *batch*, and the KV slots that each request needs beyond its tokens.

        None means any steps, and SGLang's number.
        """
        states = self._controller.states
        live = states.live.steps
        # SGLang fills in the mask of a grammar for each row, on the host.
        widest = states.deepest if batch.has_grammar else states.widest(len(batch.reqs))
        # With overlap the previous round may still be running, and its tokens are not counted yet. The last place stays
        # free for the round that may follow a request's last one before its end is known.
        behind = live + 1 if batch.enable_overlap else 0
        longest = max([req.kv.kv_committed_len for req in batch.reqs]) + behind
        room = scheduler.model_config.context_len - 2 - longest
        narrow = widest < states.tiers[-1]
        most = min(room, widest) if narrow or room < widest else None
        whole = 2 * (max(live, widest) + 1) if narrow else None
        launch = states.launch.steps
        if launch == widest or self._fits(batch, 3 * (widest + 1)):
            return most, whole
        return launch if most is None else min(most, launch), 2 * (max(live, launch) + 1)

    def _fits(self, batch: Any, slots: int) -> bool:
        """Whether each request of *batch* can get *slots* more KV slots; True for a pool with several kinds of layers.

        After a round of the most steps, three times its draft tokens leave enough for rounds of the launch steps.
        """
        allocator = batch.token_to_kv_pool_allocator
        if type(allocator) not in _known_allocators():
            return True
        free = allocator.available_size() + batch.tree_cache.evictable_size()
        if free >= len(batch.reqs) * (slots + allocator.page_size):
            return True
        with self._reserving(slots):
            return bool(batch.check_decode_mem())

    @contextmanager
    def _reserving(self, slots: int | None) -> Iterator[None]:
        """Let SGLang reserve *slots* per request beyond its tokens; None for its own number."""
        self._slots = slots
        try:
            yield
        finally:
            self._slots = None


@cache
def _known_allocators() -> tuple[type, ...]:
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

    return TokenToKVPoolAllocator, PagedTokenToKVPoolAllocator
