"""Queries that fa3 reads where the projection left them.

Queries, keys and values of a layer come out of one matrix product, a token's side by side, so the queries of a batch
are rows with gaps between them. SGLang 0.5.23 copies them together before each call of the attention kernel: 32 kernels
a round of an 8B model, 0.09 ms of an H200's time. FlashAttention 3 takes such rows as they are, and SGLang copies by
asking the tensor to be contiguous. Here, in the passes that a round is made of, it is given one that takes itself for
contiguous. Prefills and other attention kernels get the copy.
SGLANG_ADAPTIVE_QUERIES_IN_PLACE=0 in the server's environment leaves SGLang's way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sglang_adaptive.sglang_plugin.hooking.fallback import Fallback

ALIGNED = 16
"""Bytes that the kernel loads at once: rows begin at multiples of it."""

_fallback = Fallback("adaptive: queries are copied together from now on", "SGLANG_ADAPTIVE_QUERIES_IN_PLACE")


class _InPlace(torch.Tensor):  # type: ignore[misc, unused-ignore]
    """Asked to be contiguous it is itself, gaps and all; whatever else is made of it is a plain tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def contiguous(self, *args: Any, **kwargs: Any) -> _InPlace:  # type: ignore[override, unused-ignore]
        return self


def forward(
    original: Callable[..., Any], backend: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """Around forward_extend and forward_decode of FlashAttentionBackend: have a round's queries read in place."""
    if not _fallback.in_use and not torch.compiler.is_compiling():  # which knows no tensors of other kinds
        with _fallback:
            if _in_a_round(forward_batch.forward_mode) and _plain(backend) and _has_gaps(q):
                q = q.as_subclass(_InPlace)
    return original(backend, q, k, v, layer, forward_batch, *args, **kwargs)


def _in_a_round(mode: Any) -> bool:
    """Whether this is a pass of the draft, its extend, or a verify pass."""
    return bool(mode.is_decode() or mode.is_draft_extend_v2() or mode.is_target_verify())


def _plain(backend: Any) -> bool:
    """Whether the queries go from here to one call of FlashAttention 3 and nowhere else."""
    return backend.fa_impl_ver == 3 and not backend.use_mla and backend.topk <= 1 and backend.attn_cp_size == 1


def _has_gaps(q: torch.Tensor) -> bool:
    """Whether *q*, [tokens, width], is of aligned rows that are dense in themselves and have gaps between them."""
    row_bytes, offset = q.stride(0) * q.element_size(), q.data_ptr() % ALIGNED
    dense = q.dim() == 2 and q.stride(1) == 1 and not q.is_contiguous()
    return dense and row_bytes % ALIGNED == 0 and offset == 0
