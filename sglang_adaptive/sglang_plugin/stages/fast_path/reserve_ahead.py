"""Reserves KV slots of a running request for several rounds at once.

Before every round SGLang 0.5.23 extends each request's reserve to twice the maximum number of draft tokens. That takes
two copies to the device and a kernel, for one slot per request at zero steps. They write to what the previous round
still reads, so they wait for its end. Here a request that gets slots gets AHEAD more, and a round in which every
request has SGLang's reserve launches nothing. SGLang frees the slots by kv_allocated_len. Near the end of the pool or
of a request's row, and with other kinds of pools, requests get SGLang's reserve.
"""

from __future__ import annotations

from typing import Any

from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.stage import Rest, Stage
from sglang_adaptive.sglang_plugin.stages.capacity import free_slots, to_spare

AHEAD = 32
"""Slots that a request gets beyond SGLang's reserve, whenever it gets any."""


class ReserveAhead(Stage):
    """Reserves the slots of one scheduler's decode batches."""

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
    """Whether each request already has SGLang's reserve."""
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
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

    allocator = batch.token_to_kv_pool_allocator
    if type(allocator) is not TokenToKVPoolAllocator:
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
