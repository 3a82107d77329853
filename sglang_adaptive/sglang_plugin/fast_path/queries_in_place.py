"""Lets fa3 read queries where the projection wrote them, without a copy.

One matrix product yields queries, keys and values of a layer, a token's side by side, so the queries of a batch are
rows with gaps between them. SGLang 0.5.23 calls ``contiguous()`` before each attention kernel, which copies them: 32
kernels a round of an 8B model, 0.09 ms on an H200. FlashAttention 3 accepts rows with gaps. So the passes of a round
get a tensor whose ``contiguous()`` returns itself. Prefills and other attention kernels get the copy.
SGLANG_ADAPTIVE_QUERIES_IN_PLACE=0 in the server's environment restores SGLang's code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sglang_adaptive.sglang_plugin.hooking.fallback import Fallback

ALIGNED = 16
"""Bytes that the kernel loads at once; rows have to begin at multiples of it."""

_fallback = Fallback("adaptive: queries are copied together from now on", "SGLANG_ADAPTIVE_QUERIES_IN_PLACE")


class _InPlace(torch.Tensor):  # type: ignore[misc, unused-ignore]
    """A tensor whose ``contiguous()`` returns itself; results of other operations are plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def contiguous(self, *args: Any, **kwargs: Any) -> _InPlace:  # type: ignore[override, unused-ignore]
        return self


def forward(
    original: Callable[..., Any], backend: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """Around forward_extend and forward_decode of FlashAttentionBackend: read a round's queries in place."""
    if not _fallback.in_use and not torch.compiler.is_compiling():  # torch.compile refuses subclasses of tensors
        with _fallback:
            if _in_a_round(forward_batch.forward_mode) and _plain(backend) and _has_gaps(q):
                q = q.as_subclass(_InPlace)
    return original(backend, q, k, v, layer, forward_batch, *args, **kwargs)


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
