"""Moves rows inside the KV buffers, which SGLang passes as addresses."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor


def _bytes_at(address: int, rows: int, row_bytes: int) -> Tensor:
    """The memory at `address` as a uint8 tensor [rows, row_bytes], without a copy and without ownership."""
    buffer = (ctypes.c_uint8 * (rows * row_bytes)).from_address(address)
    return torch.frombuffer(buffer, dtype=torch.uint8).view(rows, row_bytes)


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """In every buffer b, copy row src_loc[i] onto row tgt_loc[i], reading all rows before writing any.

    `data_ptrs` [buffers]: address of row 0; `strides` [buffers]: bytes a row. The caller makes sure that every row
    is inside its buffer.
    """
    if tgt_loc.numel() == 0:
        return
    rows = int(torch.maximum(tgt_loc.max(), src_loc.max())) + 1
    for address, row_bytes in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        buffer = _bytes_at(address, rows, row_bytes)
        buffer[tgt_loc] = buffer[src_loc]
