"""KV slot bookkeeping between rows of the request table and flat lists, and moves inside the KV buffers."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

# `req_to_token` is the request table [requests, pool_len]: entry (r, p) is the KV slot of position p of request r.


def _cells(req_pool_indices: Tensor, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns of positions start[i] .. end[i]-1 of every request i, in request order."""
    lengths = (end - start).long()
    rows = torch.repeat_interleave(req_pool_indices.long(), lengths)
    first = torch.repeat_interleave(start.long() - (lengths.cumsum(0) - lengths), lengths)
    return rows, first + torch.arange(rows.numel())


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out_cache_loc: Tensor, pool_len: int
) -> None:
    """Write `out_cache_loc`, request after request, into positions start[i] .. end[i]-1 of the request table."""
    rows, columns = _cells(req_pool_indices, start, end)
    req_to_token[rows, columns] = out_cache_loc[: rows.numel()].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out_cache_loc: Tensor, pool_len: int
) -> None:
    """Read the slots of positions start[i] .. end[i]-1 of every request into `out_cache_loc`, packed."""
    rows, columns = _cells(req_pool_indices, start, end)
    out_cache_loc[: rows.numel()] = req_to_token[rows, columns].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Read the `topk * num_steps` slots after each request's `seq_lens` positions into `out_cache_loc`."""
    columns = seq_lens.long()[:, None] + torch.arange(topk * num_steps)
    slots = req_to_token[req_pool_indices.long()[:, None], columns]
    out_cache_loc.copy_(slots.view(-1))


def last_slots(req_to_token: Tensor, req_pool_indices: Tensor, prefix_lens: Tensor) -> Tensor:
    """[bs] in the dtype of `prefix_lens`: the slot of each request's last position, -1 for a request that has none."""
    slots = req_to_token[req_pool_indices.long(), (prefix_lens.long() - 1).clamp(min=0)]
    return torch.where(prefix_lens > 0, slots.to(prefix_lens.dtype), -1)


# Moves rows inside the KV buffers, which SGLang passes as addresses.


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """In every buffer b, copy row src_loc[i] onto row tgt_loc[i], reading all rows before writing any.

    `data_ptrs` [buffers]: address of row 0; `strides` [buffers]: bytes a row. The caller makes sure that every row
    is inside its buffer.
    """
    if tgt_loc.numel() == 0:
        return
    rows = int(torch.maximum(tgt_loc.max(), src_loc.max())) + 1
    for address, row_bytes in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (rows * row_bytes)).from_address(address)
        buffer = torch.frombuffer(memory, dtype=torch.uint8).view(rows, row_bytes)  # neither copies nor owns it
        buffer[tgt_loc] = buffer[src_loc]


# Selects a verify pass's accepted tokens and slots.


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """bonus_tokens[i] = last accepted token of request i.

    `accept_tokens` holds `accept_stride` places per request; `accept_lens` [bs] counts the bonus token, so it is >= 1.
    """
    starts = torch.arange(accept_lens.numel()) * accept_stride
    bonus_tokens.copy_(accept_tokens.view(-1)[starts + accept_lens.long() - 1])


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """Pack the slots named by the entries of `accept_index` that are not -1, in order."""
    chosen = accept_index.view(-1)
    slots = out_cache_loc[chosen[chosen >= 0].long()]
    accept_out_cache_loc[: slots.numel()] = slots
