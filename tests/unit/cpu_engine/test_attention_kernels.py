"""Attention over the paged cache against softmax written out for one query and one head at a time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_adaptive.lab.cpu_engine.kernels import attention
from sglang_adaptive.lab.cpu_engine.kernels.attention import (
    decode_plan,
    draft_plans,
    padded_attention,
    ragged_attention,
    ragged_plan,
    window_plan,
    without_order,
)

POOL_LEN = 40
SCALE = 0.3


@dataclass
class Cache:
    """A paged cache with `lengths`[i] positions of request `rows`[i] in use, and free space behind them."""

    table: torch.Tensor
    rows: torch.Tensor
    lengths: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    heads: int

    def queries(self, count: int) -> torch.Tensor:
        return torch.randn(count, self.heads, self.keys.shape[-1]).to(self.keys.dtype)

    def slots(self, request: int, positions: list[int]) -> list[int]:
        return self.table[self.rows[request], positions].tolist()


@st.composite
def caches(draw: st.DrawFn) -> Cache:
    torch.manual_seed(draw(st.integers(0, 999)))
    requests = draw(st.integers(1, 4))
    kv_heads, group, dim = (draw(st.sampled_from(sizes)) for sizes in ([1, 2], [1, 2, 3], [4, 8]))
    lengths = draw(st.lists(st.integers(1, 20), min_size=requests, max_size=requests))
    slots = 1 + requests * POOL_LEN  # slot 0 belongs to no request
    table = 1 + torch.randperm(requests * POOL_LEN).view(requests, POOL_LEN).int()
    rows = torch.randperm(requests)
    keys, values = (torch.randn(slots, kv_heads, dim) for _ in range(2))
    return Cache(table, rows, torch.tensor(lengths, dtype=torch.int32), keys, values, kv_heads * group)


def attend(cache: Cache, query: torch.Tensor, slots: list[int]) -> torch.Tensor:
    """One query [heads, dim] over the given slots, in float64: [heads * dim]."""
    group = cache.heads // cache.keys.shape[1]
    out = []
    for head in range(cache.heads):
        k = cache.keys[slots, head // group].double()
        v = cache.values[slots, head // group].double()
        weights = torch.softmax(SCALE * (k @ query[head].double()), dim=0)
        out.append(weights @ v)
    return torch.cat(out)


def check(cache: Cache, got: torch.Tensor, queries: torch.Tensor, seen: list[list[int]]) -> None:
    assert got.dtype == queries.dtype
    wanted = torch.stack([attend(cache, query, slots) for query, slots in zip(queries, seen, strict=True)])
    torch.testing.assert_close(got.double(), wanted, atol=1e-5, rtol=1e-5)


@given(caches())
def test_decode_sees_every_position(cache):
    queries = cache.queries(cache.rows.numel())
    plan = decode_plan(cache.table, cache.rows, cache.lengths, queries.dtype)
    seen = [cache.slots(i, list(range(length))) for i, length in enumerate(cache.lengths.tolist())]
    check(cache, padded_attention(queries, cache.keys, cache.values, plan, SCALE), queries, seen)


@given(caches(), st.integers(1, 3))
def test_queries_behind_the_plan_get_zeros_and_change_nothing(cache, more):
    """With attention DP, SGLang pads a batch; the padding rows write to slot 0, which all may read."""
    queries = cache.queries(cache.rows.numel() + more)
    plan = decode_plan(cache.table, cache.rows, cache.lengths, queries.dtype)
    got = padded_attention(queries, cache.keys, cache.values, plan, SCALE)
    alone = padded_attention(queries[:-more], cache.keys, cache.values, plan, SCALE)
    assert torch.equal(got[:-more], alone)
    assert got.shape[0] == len(queries) and not got[-more:].any()


@given(caches(), st.integers(1, 8), st.sampled_from(["chain", "tree", "block"]), st.integers(0, 99))
@settings(max_examples=200)
def test_a_window_sees_the_prefix_and_what_it_may_of_itself(cache, width, kind, seed):
    """That is what came before in a chain, what its mask allows in a tree, and all of a drafted block."""
    bs = cache.rows.numel()
    queries = cache.queries(bs * width)
    every = torch.ones(bs, width, width, dtype=torch.bool)
    drawn = torch.rand(every.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    allowed = {"chain": every.tril(), "tree": drawn | torch.eye(width, dtype=torch.bool), "block": every}[kind]
    mask = allowed.view(-1) if kind == "tree" else None
    plan = window_plan(cache.table, cache.rows, cache.lengths, width, queries.dtype, mask)
    if kind == "block":
        plan = without_order(plan)
    seen = []
    for request, length in enumerate(cache.lengths.tolist()):
        for row in allowed[request].tolist():
            inside = [length + j for j, sees in enumerate(row) if sees]
            seen.append(cache.slots(request, [*range(length), *inside]))
    check(cache, padded_attention(queries, cache.keys, cache.values, plan, SCALE), queries, seen)


@pytest.mark.parametrize("windows", [st.just(0), st.integers(1, 8)], ids=["no window", "a window"])
@given(cache=caches(), topk=st.integers(1, 3), num_steps=st.integers(2, 5), sinks=st.integers(0, 3), data=st.data())
def test_a_draft_branch_sees_the_prefix_and_its_own_steps(windows, cache, topk, num_steps, sinks, data):
    """With a window it sees the first and the latest positions of the prefix."""
    window = data.draw(windows)
    plans = draft_plans(cache.table, cache.rows, cache.lengths, topk, num_steps, torch.float32, window, sinks)
    assert len(plans) == num_steps - 1
    for step, plan in enumerate(plans):
        queries, seen = cache.queries(cache.rows.numel() * topk), []
        for request, length in enumerate(cache.lengths.tolist()):
            latest = range(max(0, length - window) if window else 0, length)
            before = sorted({*range(min(sinks, length)), *latest})
            for branch in range(topk):
                first = length + branch * num_steps
                seen.append(cache.slots(request, [*before, *range(first, first + step + 1)]))
        check(cache, padded_attention(queries, cache.keys, cache.values, plan, SCALE), queries, seen)


@pytest.mark.parametrize("block", [2, 512])
@given(cache=caches(), data=st.data())
@settings(max_examples=50)
def test_prefill_is_causal_after_the_cached_prefix(block, cache, data):
    """A small block splits every request, so that both ways of masking are used."""
    lengths = cache.lengths.tolist()
    extends = [data.draw(st.integers(1, length)) for length in lengths]
    prefixes = [length - extend for length, extend in zip(lengths, extends, strict=True)]
    queries = cache.queries(sum(extends))
    plan = ragged_plan(cache.table, cache.rows, prefixes, extends)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "QUERY_BLOCK", block)
        got = ragged_attention(queries, cache.keys, cache.values, plan, SCALE)
    seen = [
        cache.slots(request, list(range(position + 1)))
        for request, (prefix, length) in enumerate(zip(prefixes, lengths, strict=True))
        for position in range(prefix, length)
    ]
    check(cache, got, queries, seen)


def test_nothing_reads_slots_past_a_request():
    """Padding must not read past a shorter request, where values may be NaN."""
    table = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int32)
    rows, lengths = torch.tensor([0, 1]), torch.tensor([3, 1], dtype=torch.int32)
    keys, values = torch.ones(8, 1, 4), torch.ones(8, 1, 4)
    keys[5:7] = values[5:7] = float("nan")
    out = padded_attention(torch.ones(2, 1, 4), keys, values, decode_plan(table, rows, lengths, torch.float32), SCALE)
    assert torch.equal(out, torch.ones(2, 4))
