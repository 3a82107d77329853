"""Lets fa3 read queries where the projection wrote them, without a copy.

One matrix product yields queries, keys and values of a layer, a token's side by side, so the queries of a batch are
rows with gaps between them. SGLang 0.5.23 calls ``contiguous()`` before each attention kernel, which copies them: 32
kernels a round of an 8B model, 0.09 ms on an H200. FlashAttention 3 accepts rows with gaps. So the passes of a round
get a tensor whose ``contiguous()`` returns itself. Prefills and other attention kernels get the copy.
SGLANG_ADAPTIVE_QUERIES_IN_PLACE=0 in the server's environment restores SGLang's code.
"""

from __future__ import annotations

from typing import Any

import torch

from sglang_adaptive.sglang_plugin import env
from sglang_adaptive.sglang_plugin.guard import Guard

ALIGNED = 16
"""Bytes that the kernel loads at once; rows have to begin at multiples of it."""


class _InPlace(torch.Tensor):  # type: ignore[misc, unused-ignore]
    """A tensor whose ``contiguous()`` returns itself; results of other operations are plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def contiguous(self, *args: Any, **kwargs: Any) -> _InPlace:  # type: ignore[override, unused-ignore]
        return self


class QueriesInPlace:
    """The queries of fa3's passes in a round."""

    def __init__(self) -> None:
        self.guard = Guard("adaptive: queries are copied together from now on", env.QUERIES_IN_PLACE)

    def in_place(self, backend: Any, q: Any, forward_batch: Any) -> Any:
        """Return the queries *q* as fa3 is to read them."""
        if torch.compiler.is_compiling():  # torch.compile refuses subclasses of tensors
            return q
        mine = self.guard.attempt(_in_place, backend, q, forward_batch)
        return q if mine is None else mine


def _in_place(backend: Any, q: Any, forward_batch: Any) -> Any:
    if _in_a_round(forward_batch.forward_mode) and _plain(backend) and _has_gaps(q):
        return q.as_subclass(_InPlace)
    return None


def _in_a_round(mode: Any) -> bool:
    """Whether this is a pass of the draft, a draft extend or a verify pass."""
    return bool(mode.is_decode() or mode.is_draft_extend_v2() or mode.is_target_verify())


def _plain(backend: Any) -> bool:
    """Whether one call of FlashAttention 3 is all that reads the queries."""
    return backend.fa_impl_ver == 3 and not backend.use_mla and backend.topk <= 1 and backend.attn_cp_size == 1


def _has_gaps(q: torch.Tensor) -> bool:
    """Whether *q*, [tokens, width], has dense, aligned rows with gaps between them."""
    row_bytes, offset = q.stride(0) * q.element_size(), q.data_ptr() % ALIGNED
    dense = q.dim() == 2 and q.stride(1) == 1 and not q.is_contiguous()
    return dense and row_bytes % ALIGNED == 0 and offset == 0
