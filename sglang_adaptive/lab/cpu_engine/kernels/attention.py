"""Attention over a paged KV cache, as one padded call or one call per request."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sglang_adaptive.lab.cpu_engine.kernels.plan import PaddedPlan, RaggedPlan

# Queries of one request handled together in prefill: bounds the mask at QUERY_BLOCK x keys.
QUERY_BLOCK = 512


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
        bias = None if causal_from_zero else _causal_bias(last - first, seen, query.dtype)
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


def _causal_bias(queries: int, keys: int, dtype: torch.dtype) -> Tensor:
    hidden = torch.full((queries, keys), float("-inf"), dtype=dtype)
    return hidden.triu_(keys - queries + 1)
