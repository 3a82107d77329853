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

from collections.abc import Callable
from functools import cache
from typing import Any

from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.sglang_plugin.configuration import configuration
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.stage import Rest, Stage

SPARE = 32
"""Slots that must be free or in the prefix cache for each one that is reserved beyond a launch's, so that the cache
keeps nearly as many prompts as with fixed steps."""
_KNOWN_ALLOCATORS = ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator")


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

    slots = max(allocation_sizing.get_alloc_reserve_per_decode(), 2 * (max(configuration().drafts) + 1))
    return max(original(), int(slots + allocation_sizing.get_alloc_page_size()) - 1)


def rows_of_logits(original: Callable[[Any], int], runner: Any) -> int:
    """Return the rows of the logits of CUDA graphs: SGLang's *original*, or those of a lookup round."""
    kinds = configuration().options.lookup_kinds.items()
    return max(original(runner), max((sizes[-1] * (drafts + 1) for drafts, sizes in kinds), default=0))


def free_slots(batch: Any) -> int:
    """Return the KV slots that *batch* could get: those that are free, and those of the prefix cache."""
    return int(batch.token_to_kv_pool_allocator.available_size() + batch.tree_cache.evictable_size())


def to_spare(batch: Any, more: int) -> int:
    """Return how many slots must be free for each request, so that it may reserve *more* than at the launch steps."""
    return SPARE * more if batch.tree_cache.supports_prefix_sharing() else more


class Capacity(Stage):
    """Limits the rounds of one scheduler to the room that their requests have."""

    def __init__(self, controller: AdaptiveController) -> None:
        self._controller = controller
        self._slots: int | None = None
        """KV slots to reserve for each request of the next round beyond its tokens; None for those of the most."""
        self.guard = Guard("capacity")

    def alloc_reserve(self, rest: Rest) -> int:
        """Return the slots to reserve for the next round; after an error, enough for any."""
        every = 2 * (self._controller.states.tiers[-1] + 1)
        return max(int(rest()), every) if self._slots is None else self._slots

    def update_running_batch(self, rest: Rest, scheduler: Any, batch: Any) -> Any:
        """Note the most steps that the next round of *batch* has room for, and let SGLang prepare it."""
        controller, room = self._controller, None
        controller.lookups_fit = True
        if not batch.is_empty():
            room = self.guard.attempt(self._room, scheduler, batch)
        controller.most_steps, self._slots = room or (None, None)
        try:
            return rest(scheduler, batch)
        finally:
            self._slots = None

    def _room(self, scheduler: Any, batch: Any) -> tuple[int | None, int | None]:
        """Return the most steps for a round of *batch*, and the KV slots that each request needs beyond its tokens.

        None means any steps, and the slots of the most.
        """
        states = self._controller.states
        live, every = states.live.steps, states.tiers[-1]
        # SGLang fills in the mask of a grammar for each row, on the host.
        widest = states.deepest if batch.has_grammar else states.widest(len(batch.reqs))
        spared = self._affordable(batch, widest)
        self._controller.lookups_fit = spared == widest or spared > states.deepest
        # With overlap the previous round may still be running, and its tokens are not counted yet. The last place stays
        # free for the round that may follow a request's last one before its end is known.
        behind = live + 1 if batch.enable_overlap else 0
        longest = max([req.kv.kv_committed_len for req in batch.reqs]) + behind
        most = min(scheduler.model_config.context_len - 2 - longest, spared)
        if batch.has_grammar and not _grammars_take_back():
            most = 0
        return None if most == every else most, None if spared == every else 2 * (max(live, spared) + 1)

    def _affordable(self, batch: Any, widest: int) -> int:
        """Return the most steps, up to *widest*, whose slots the pool can spare; at least the launch steps.

        After a round, three times its draft tokens leave enough for rounds of the launch steps.
        """
        states, allocator = self._controller.states, batch.token_to_kv_pool_allocator
        if type(allocator).__name__ not in _KNOWN_ALLOCATORS:  # a pool with several kinds of layers
            return widest
        launch, free = states.launch.steps, free_slots(batch)
        for steps in reversed(states.tiers):
            if launch < steps <= widest:
                asked = max(to_spare(batch, 2 * (steps - launch)), 3 * (steps + 1) + allocator.page_size)
                if free >= len(batch.reqs) * asked:
                    return steps
        return launch


@cache
def _grammars_take_back() -> bool:
    """Whether grammars can take back rejected drafts; SGLang verifies wrongly with those of outlines, or ends."""
    from sglang.srt.runtime_context import get_exec

    return bool(get_exec().kernel.grammar_backend != "outlines")


AHEAD = 32
"""Slots that a request gets beyond SGLang's reserve, whenever it gets any."""


class ReserveAhead(Stage):
    """Reserves KV slots of a running request for several rounds at once.

    Before every round SGLang 0.5.23 extends each request's reserve to twice the maximum number of draft tokens, at zero
    steps by one slot. That takes two copies to the device and a kernel, which write to what the previous round still
    reads, so they wait for its end. Here a request that gets slots gets AHEAD more, and a round in which every request
    has SGLang's reserve launches nothing. SGLang frees the slots by kv_allocated_len.
    """

    def __init__(self, controller: AdaptiveController) -> None:
        self._controller = controller
        # Ranks that reserve different slots would have different free slots, and then different batches.
        self.guard = Guard("reserve-ahead")
        self._batch: Any = None
        """The batch for which SGLang is reserving slots; None at other times."""

    def prepare_for_decode(self, rest: Rest, batch: Any) -> None:
        """Prepare *batch* for a decode round; SGLang reserves slots where a request needs some."""
        if self._controller.warm_up.runs:
            rest(batch)  # loads the kernel that writes slots, which has a variant for each power of two of requests
        elif self.guard.attempt(_is_covered, batch):
            _prepare_the_rest(batch)
        else:
            self._batch = batch
            try:
                rest(batch)
            finally:
                self._batch = None

    def decode_alloc_lens(self, rest: Rest, reqs: Any, *, reserve: int, page_size: int) -> Any:
        """Return the length up to which each request gets slots: beyond *reserve* where there is room."""
        more = 0 if self._batch is None else self.guard.attempt(_more, self._batch, reserve) or 0
        return rest(reqs, reserve=reserve + more, page_size=page_size)


def _is_covered(batch: Any) -> bool:
    from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode

    reserve = get_alloc_reserve_per_decode()
    # A request owns whole pages, so enough tokens are enough pages.
    for req in batch.reqs:
        kv = req.kv
        if kv.kv_committed_len + reserve > kv.kv_allocated_len:
            return False
    return True


def _more(batch: Any, reserve: int) -> int:
    """Return how many slots beyond *reserve* a request of *batch* may get."""
    if type(batch.token_to_kv_pool_allocator).__name__ != "TokenToKVPoolAllocator":
        return 0
    longest = max([req.kv.kv_committed_len for req in batch.reqs])
    if longest + reserve + AHEAD > batch.req_to_token_pool.req_to_token.shape[1]:
        return 0
    asked = max(to_spare(batch, AHEAD), 4 * (reserve + AHEAD))
    return AHEAD if free_slots(batch) >= len(batch.reqs) * asked else 0


def _prepare_the_rest(batch: Any) -> None:
    """Do everything that eagle_prepare_for_decode does except the reservation."""
    batch.maybe_evict_swa()
    if batch.sampling_info.penalizer_orchestrator.is_required:
        batch.cumulate_penalty_output_tokens()
    for req in batch.reqs:
        req.decode_batch_idx += 1
    if batch.seq_lens_cpu is None:
        batch.max_seq_len_host = max(req.kv.kv_allocated_len for req in batch.reqs)
