"""Attention over a paged KV cache: what each query may attend to, planned once per pass, and the attention itself.

Decode, verify and draft rounds have few queries per request, so one padded call (`PaddedPlan`) serves all requests.
Prefill has long and unequal ones, so each request gets a separate call (`RaggedPlan`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

# Queries of one request handled together in prefill: bounds the mask at QUERY_BLOCK x keys.
QUERY_BLOCK = 512


@dataclass(frozen=True, slots=True)
class PaddedPlan:
    """`width` queries per request, for `batch` requests.

    `slots` [batch * keys]: KV slot of every key, padding included; `bias` [batch, 1, width or 1, keys] in the query's
    dtype: 0 where a query may attend, -inf where it may not; None when nothing is masked.
    """

    batch: int
    width: int
    slots: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class RaggedPlan:
    """Query rows start .. stop-1 of the batch belong to one request, which has the KV slots `slots` [keys].

    The queries are the last stop-start of its positions and attend causally.
    """

    parts: Sequence[tuple[int, int, Tensor]]


def _bias(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, float("-inf")).unsqueeze(1)


def _prefix(table: Tensor, rows: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
    """Slots [bs, longest] of positions 0 .. lengths[i]-1, and which entries are real (None: all).

    Entries past a request's length are not valid, so padding reads slot 0, which SGLang keeps free and finite.
    """
    longest = int(lengths.max())
    slots = table[rows.long(), :longest].long()
    if rows.numel() == 1 or int(lengths.min()) == longest:
        return slots, None
    real = torch.arange(longest) < lengths[:, None]
    return slots.masked_fill_(~real, 0), real


def decode_plan(table: Tensor, rows: Tensor, seq_lens: Tensor, dtype: torch.dtype) -> PaddedPlan:
    """One query per request: the last of its `seq_lens` positions. `table` [requests, pool_len], `rows` [bs]."""
    slots, real = _prefix(table, rows, seq_lens)
    return PaddedPlan(rows.numel(), 1, slots.view(-1), None if real is None else _bias(real[:, None], dtype))


def window_plan(
    table: Tensor, rows: Tensor, prefix_lens: Tensor, width: int, dtype: torch.dtype, tree_mask: Tensor | None = None
) -> PaddedPlan:
    """The `width` positions after each request's prefix query the prefix and each other.

    Among themselves they attend causally, or by `tree_mask` [bs * width * width] bool, entry (i, j): i sees j.
    """
    bs = rows.numel()
    slots, real = _prefix(table, rows, prefix_lens)
    new = table[rows.long()[:, None], prefix_lens.long()[:, None] + torch.arange(width)].long()
    keys = torch.cat((slots, new), dim=1).view(-1)
    if width == 1 and real is None:
        return PaddedPlan(bs, width, keys, None)
    if tree_mask is None:
        among = torch.ones(width, width, dtype=torch.bool).tril_().expand(bs, width, width)
    else:
        among = tree_mask[: bs * width * width].view(bs, width, width)
    before = torch.ones_like(slots, dtype=torch.bool) if real is None else real
    seen = torch.cat((before[:, None].expand(-1, width, -1), among), dim=2)
    return PaddedPlan(bs, width, keys, _bias(seen, dtype))


def without_order(plan: PaddedPlan) -> PaddedPlan:
    """Return a causal `window_plan` in which each position sees its whole window, as in a drafted block."""
    if plan.bias is None:
        return plan
    bias = plan.bias.clone()
    bias[..., -plan.width :] = 0
    return replace(plan, bias=bias)


def draft_plans(
    table: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    dtype: torch.dtype,
    window: int = 0,
    sinks: int = 0,
) -> list[PaddedPlan]:
    """Plans of draft steps 0 .. num_steps-2, one query per branch, request-major.

    At step s a branch sees its request's `seq_lens` positions and its own s+1 draft slots. After the prefix the table
    holds `num_steps` slots for the first branch, then for the second, and so on. With a *window*, of the request's
    positions it sees the first *sinks* and the latest *window*.
    """
    branches = rows.numel() * topk
    slots, real = _prefix(table, rows, seq_lens)
    if 0 < window < slots.shape[1] - sinks:
        at = torch.arange(slots.shape[1])
        seen = (at < sinks) | (at >= seq_lens[:, None] - window)
        real = seen if real is None else real & seen
    columns = seq_lens.long()[:, None] + torch.arange(topk * num_steps)
    own = table[rows.long()[:, None], columns].long().view(branches, num_steps)
    slots = slots.repeat_interleave(topk, dim=0)
    if real is not None:
        real = real.repeat_interleave(topk, dim=0)[:, None]
    plans = []
    for step in range(1, num_steps):
        keys = torch.cat((slots, own[:, :step]), dim=1).view(-1)
        bias = None if real is None else _bias(pad(real, (0, step), value=True), dtype)
        plans.append(PaddedPlan(branches, 1, keys, bias))
    return plans


def ragged_plan(table: Tensor, rows: Tensor, prefix_lens: Sequence[int], extend_lens: Sequence[int]) -> RaggedPlan:
    """The queries of request i are the extend_lens[i] positions after its first prefix_lens[i]."""
    parts = []
    start = 0
    for row, prefix, extend in zip(rows.tolist(), prefix_lens, extend_lens, strict=True):
        parts.append((start, start + extend, table[row, : prefix + extend].long()))
        start += extend
    return RaggedPlan(tuple(parts))


def padded_attention(query: Tensor, keys: Tensor, values: Tensor, plan: PaddedPlan, scale: float) -> Tensor:
    """Attention of `query` [queries, heads, dim] over cache rows `keys`/`values` [slots, kv_heads, dim].

    There are batch*width queries. With attention DP, padding rows follow them and get zeros. Returns [queries,
    heads*dim_v]. Query heads share KV heads in consecutive groups.
    """
    planned = plan.batch * plan.width
    if query.shape[0] > planned:
        out = padded_attention(query[:planned], keys, values, plan, scale)
        return torch.cat((out, out.new_zeros(query.shape[0] - planned, out.shape[1])))
    seen = len(plan.slots) // max(plan.batch, 1)
    k = keys.index_select(0, plan.slots).view(plan.batch, seen, *keys.shape[1:]).transpose(1, 2)
    v = values.index_select(0, plan.slots).view(plan.batch, seen, *values.shape[1:]).transpose(1, 2)
    q = query.view(plan.batch, plan.width, *query.shape[1:]).transpose(1, 2)
    out = scaled_dot_product_attention(q, k, v, attn_mask=plan.bias, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).reshape(query.shape[0], out.shape[1] * out.shape[3])


def ragged_attention(query: Tensor, keys: Tensor, values: Tensor, plan: RaggedPlan, scale: float) -> Tensor:
    """Like `padded_attention`, for requests with different numbers of queries that attend causally."""
    out = query.new_empty(query.shape[0], query.shape[1], values.shape[-1])
    for start, stop, slots in plan.parts:
        k = keys.index_select(0, slots)
        v = values.index_select(0, slots)
        _causal(query[start:stop], k, v, out[start:stop], scale)
    return out.flatten(1)


def _causal(query: Tensor, k: Tensor, v: Tensor, out: Tensor, scale: float) -> None:
    """One request: `query` [extend, heads, dim] holds the last of the positions in `k`, `v` [keys, kv_heads, dim]."""
    prefix = k.shape[0] - query.shape[0]
    for first in range(0, query.shape[0], QUERY_BLOCK):
        last = min(first + QUERY_BLOCK, query.shape[0])
        seen = prefix + last
        causal_from_zero = prefix + first == 0
        bias = None
        if not causal_from_zero:
            hidden = torch.full((last - first, seen), float("-inf"), dtype=query.dtype)
            bias = hidden.triu_(prefix + first + 1)
        block = scaled_dot_product_attention(
            query[first:last].transpose(0, 1)[None],
            k[:seen].transpose(0, 1)[None],
            v[:seen].transpose(0, 1)[None],
            attn_mask=bias,
            is_causal=causal_from_zero,
            scale=scale,
            enable_gqa=query.shape[1] != k.shape[1],
        )
        out[first:last] = block[0].transpose(0, 1)
