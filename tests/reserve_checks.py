"""Checks KV slots reserved ahead, with SGLang's own pools and round code, in a process of the CPU engine."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from sglang_adaptive.sglang_plugin import hooks
from sglang_adaptive.sglang_plugin.hooks import Process
from sglang_adaptive.sglang_plugin.rounds import Rounds
from sglang_adaptive.sglang_plugin.stage import set_current
from sglang_adaptive.sglang_plugin.stages.capacity import AHEAD, SPARE, ReserveAhead

RESERVE = 16
PROMPT = 10
ROUNDS = 100


def requests_always_have_what_sglang_gives_them() -> None:
    _begin()
    for accepted in ([1], [8], [1, 3], [2, 1, 8, 5]):
        batch = _batch(len(accepted))
        before = [0] * len(accepted)
        for _ in range(ROUNDS):
            rows = batch.req_to_token_pool.req_to_token[1:].clone()
            _prepare(batch)
            for row, req in enumerate(batch.reqs):
                assert req.kv.kv_allocated_len >= req.kv.kv_committed_len + RESERVE
                now = batch.req_to_token_pool.req_to_token[1 + row]
                assert torch.equal(now[: before[row]], rows[row][: before[row]])
                before[row] = req.kv.kv_allocated_len
            _all_accounted(batch)
            _commit(batch, accepted)
        assert [req.decode_batch_idx for req in batch.reqs] == [ROUNDS] * len(accepted)


def slots_are_given_in_one_round_of_many() -> None:
    """At one token per round, one round in 33 allocates, no matter when requests joined; in SGLang every round does."""
    reserve, batch = _begin(), _batch(2)
    batch.reqs[1].kv.kv_committed_len -= 3
    assert _rounds_with_slots(batch, ROUNDS, [1]) == 1 + (ROUNDS - 1) // (AHEAD + 1)
    reserve.guard.closed = True
    assert _rounds_with_slots(_batch(2), ROUNDS, [1]) == ROUNDS
    set_current(None)
    assert _rounds_with_slots(_batch(2), ROUNDS, [1]) == ROUNDS


def a_round_without_needs_does_the_rest() -> None:
    from sglang.srt.speculative.eagle_utils import eagle_prepare_for_decode

    keeps_longest = "max_seq_len_host" in inspect.getsource(eagle_prepare_for_decode)  # not SGLang 0.5.22
    _begin()
    batch = _batch(2)
    batch.sampling_info.penalizer_orchestrator.is_required = True
    for _ in range(3):
        longest = max(req.kv.kv_allocated_len for req in batch.reqs)
        _prepare(batch)
        assert batch.max_seq_len_host == longest or not keeps_longest
    assert batch.done == ["windows", "penalties"] * 3
    batch.seq_lens_cpu, batch.max_seq_len_host = torch.tensor([1, 1]), None
    _prepare(batch)
    assert batch.max_seq_len_host is None


def nobody_gets_more_near_the_end_of_the_pool() -> None:
    _begin()
    most = 4 * 2 * (RESERVE + AHEAD)
    for size, ahead in ((most, AHEAD), (most - 1, 0)):
        batch = _batch(2, size=size + 2 * PROMPT)
        _prepare(batch)
        given = {req.kv.kv_allocated_len - PROMPT - RESERVE for req in batch.reqs}
        assert given == {ahead}, (size, given)
    batch = _batch(2, size=most - 1 + 2 * PROMPT, evictable=1)
    _prepare(batch)
    assert batch.reqs[0].kv.kv_allocated_len == PROMPT + RESERVE + AHEAD
    cached = 1500
    for size, ahead in ((SPARE * 2 * AHEAD - cached, AHEAD), (SPARE * 2 * AHEAD - cached - 1, 0)):
        batch = _batch(2, size=size + 2 * PROMPT, evictable=cached)
        batch.tree_cache.supports_prefix_sharing = lambda: True
        batch.tree_cache.evict = None  # nothing may be evicted: slots are free
        _prepare(batch)
        assert batch.reqs[0].kv.kv_allocated_len == PROMPT + RESERVE + ahead, size


def nobody_gets_more_than_a_row_holds() -> None:
    _begin()
    for width, ahead in ((PROMPT + RESERVE + AHEAD, AHEAD), (PROMPT + RESERVE, 0)):
        batch = _batch(2, width=width)
        _prepare(batch)
        assert batch.reqs[1].kv.kv_allocated_len == PROMPT + RESERVE + ahead, width


def pools_of_other_kinds_are_left_to_sglang() -> None:
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

    _begin()
    batch = _batch(1)
    batch.token_to_kv_pool_allocator.__class__ = type("Another", (TokenToKVPoolAllocator,), {})
    assert _rounds_with_slots(batch, 5, [1]) == 5


def a_warm_up_reserves_in_every_round() -> None:
    """The kernel that writes slots must run at every batch size before the server is ready."""
    controller: Any = SimpleNamespace(warm_up=SimpleNamespace(runs=True))
    _begin(controller)
    batch = _batch(2)
    assert _rounds_with_slots(batch, 5, [1]) == 5
    controller.warm_up.runs = False
    assert _rounds_with_slots(batch, 5, [1]) == 1


def a_fault_leaves_reservations_to_sglang() -> None:
    """SGLang reserves slots from then on; nothing is raised."""
    from sglang.srt.runtime_context import get_parallel

    reserve, batch = _begin(), _batch(1)
    batch.tree_cache.evictable_size = None
    with get_parallel().override(attn_dp_size=1, tp_group=SimpleNamespace(world_size=1)):
        assert _rounds_with_slots(batch, 5, [1]) == 5 and reserve.guard.closed
    batch.tree_cache.evictable_size = lambda: 0
    assert _rounds_with_slots(batch, 5, [1]) == 5


def _begin(controller: Any = None) -> ReserveAhead:
    """Begin a round of *controller*, or of one whose warm-up is over; return the object that reserves its slots."""
    reserve = ReserveAhead(controller or SimpleNamespace(warm_up=SimpleNamespace(runs=False)))
    now: Any = Rounds(None, None)
    now.use([reserve])
    set_current(now)
    return reserve


def _batch(requests: int, size: int = 20_000, width: int = 4096, evictable: int = 0) -> Any:
    """Return what SGLang's round code reads of a batch whose requests have prefilled PROMPT tokens."""
    from sglang.srt.managers.schedule_batch import ReqKvInfo
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

    allocator = TokenToKVPoolAllocator(size, torch.float32, "cpu", None, need_sort=False)
    pool = ReqToTokenPool(requests, width, "cpu", enable_memory_saver=False)
    cache = SimpleNamespace(
        token_to_kv_pool_allocator=allocator, evictable_size=lambda: evictable,
        supports_prefix_sharing=lambda: False,
    )  # fmt: skip
    reqs = []
    for row in range(1, requests + 1):
        pool.req_to_token[row, :PROMPT] = allocator.alloc(PROMPT).to(torch.int32)
        held = {"req_pool_idx": row, "kv_committed_len": PROMPT, "kv_allocated_len": PROMPT}
        reqs.append(SimpleNamespace(kv=ReqKvInfo(**held), decode_batch_idx=0))
    done: list[str] = []
    return SimpleNamespace(
        reqs=reqs, device="cpu", done=done, tree_cache=cache, token_to_kv_pool_allocator=allocator,
        req_to_token_pool=pool, req_pool_indices=torch.arange(1, requests + 1), seq_lens_cpu=None,
        max_seq_len_host=None, hisparse_coordinator=None,
        sampling_info=SimpleNamespace(penalizer_orchestrator=SimpleNamespace(is_required=False)),
        maybe_evict_swa=lambda: done.append("windows"),
        cumulate_penalty_output_tokens=lambda: done.append("penalties"),
    )  # fmt: skip


def _prepare(batch: Any) -> None:
    from sglang.srt.speculative import eagle_utils

    eagle_utils.eagle_prepare_for_decode(batch)


def _commit(batch: Any, accepted: Sequence[int]) -> None:
    for row, req in enumerate(batch.reqs):
        req.kv.kv_committed_len += accepted[row % len(accepted)]


def _rounds_with_slots(batch: Any, rounds: int, accepted: Sequence[int]) -> int:
    given = 0
    for _ in range(rounds):
        free = batch.token_to_kv_pool_allocator.available_size()
        _prepare(batch)
        given += batch.token_to_kv_pool_allocator.available_size() < free
        _commit(batch, accepted)
    return given


def _all_accounted(batch: Any) -> None:
    """Check that every slot is free or owned by one request, and that owned slots count in its allocated length."""
    rows = batch.req_to_token_pool.req_to_token
    owned = [rows[req.kv.req_pool_idx, : req.kv.kv_allocated_len].to(torch.int64) for req in batch.reqs]
    allocator = batch.token_to_kv_pool_allocator
    every = torch.cat([*owned, allocator.free_pages]).sort().values
    assert torch.equal(every, torch.arange(1, allocator.size + 1))


def prepare() -> None:
    """Let SGLang's code run with this package's hooks."""
    from sglang.srt.mem_cache import allocation_sizing
    from sglang.srt.speculative import eagle_utils

    wanted = ("eagle_prepare_for_decode", "page_aligned_decode_alloc_lens")
    hooks.install_now(hook for hook in hooks.hooks(Process.SCHEDULER) if hook.target.endswith(wanted))
    for module in (eagle_utils, allocation_sizing):
        module.get_alloc_reserve_per_decode = lambda: RESERVE  # needs no server configuration
