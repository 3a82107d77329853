"""Computes fa3's tile schedule of a verify pass once a pass instead of once a layer.

FlashAttention 3 begins each call with variable lengths with a kernel that lays out its tiles. In a plain decode SGLang
0.5.23 computes the layout once for all layers. In a verify pass, also of one draft token a request, each layer computes
it again: 32 kernels a round of an 8B model, 0.1 ms on an H200. The layout depends on the lengths alone, which are the
same in all layers. Here the first layer's call computes it, also inside a CUDA graph, and the other layers use it.
SGLANG_ADAPTIVE_VERIFY_SCHEDULE=0 in the server's environment restores SGLang's code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_adaptive.sglang_plugin.hooking.fallback import Fallback

_ON_BACKEND = "_sglang_adaptive_schedule"

_current: Any = None
"""The schedule for the current attention call; None for a call that computes its own."""

_fallback = Fallback(
    "adaptive: each layer of a verify pass makes its own schedule from now on", "SGLANG_ADAPTIVE_VERIFY_SCHEDULE"
)


def forward_extend(
    original: Callable[..., Any], backend: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """Around FlashAttentionBackend.forward_extend: use one tile schedule for all layers of a verify pass."""
    global _current
    if not _fallback.in_use and forward_batch.forward_mode.is_target_verify():
        with _fallback:
            _current = _schedule(backend, layer, forward_batch)
    try:
        return original(backend, q, k, v, layer, forward_batch, *args, **kwargs)
    finally:
        _current = None


def flash_attn_with_kvcache(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around fa3's flash_attn_with_kvcache: pass the schedule of the verify pass."""
    if _current is not None:
        kwargs["scheduler_metadata"] = _current
    return original(*args, **kwargs)


def _schedule(backend: Any, layer: Any, forward_batch: Any) -> Any:
    """Return the schedule of the pass that *layer* is in; None where the layer needs one of its own.

    A pass runs the layers in ascending order, so a layer id that does not increase begins another pass.
    """
    if not _plain(backend, layer, forward_batch):
        return None
    before, schedule = getattr(backend, _ON_BACKEND, (None, None))
    if before is None or layer.layer_id <= before:
        schedule = _computed(backend)
    setattr(backend, _ON_BACKEND, (layer.layer_id, schedule))
    return schedule


def _plain(backend: Any, layer: Any, forward_batch: Any) -> bool:
    """Whether the layer attends to all tokens of each request, as the verify pass of a chain does.

    A layer whose values are narrower than its keys has other tiles than those that the schedule is computed for.
    """
    window = layer.sliding_window_size
    return (
        backend._get_scheduler_metadata is not None
        and not backend.use_mla
        and not backend._disable_scheduler_metadata_precompute
        and backend.topk <= 1
        and backend.local_attn_builder is None
        and backend.attn_cp_size == 1
        and backend._kv_shard_pool is None
        and not backend.is_encoder_decoder
        and not layer.is_cross_attention
        and (window is None or window < 0)
        and layer.v_head_dim == layer.qk_head_dim
        and getattr(forward_batch.spec_info, "ragged_verify_layout", None) is None
    )


def _computed(backend: Any) -> Any:
    """Return the schedule for SGLang's call in a verify pass, on the device; nothing waits for it."""
    metadata = backend.forward_metadata
    return backend._get_scheduler_metadata(
        batch_size=metadata.cache_seqlens_int32.shape[0],
        max_seqlen_q=metadata.max_seq_len_q,
        # The kernel's own value: the width of the page table.
        max_seqlen_k=metadata.page_table.shape[1] * backend.page_size,
        num_heads=backend.num_attention_heads,
        num_heads_k=backend.num_kv_heads,
        headdim=backend.head_dim,
        cache_seqlens=metadata.cache_seqlens_int32,
        qkv_dtype=backend.kv_cache_dtype,
        cu_seqlens_q=metadata.cu_seqlens_q,
        page_size=backend.page_size,
        causal=True,
        has_softcap=backend.has_softcap,
        num_splits=backend.num_splits,
    )
