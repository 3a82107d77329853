"""Computes fa3's tile schedule of a verify pass once a pass instead of once a layer.

FlashAttention 3 begins each call with variable lengths with a kernel that lays out its tiles. In a plain decode SGLang
0.5.23 computes the layout once for all layers. In a verify pass, also of one draft token a request, each layer computes
it again: 32 kernels a round of an 8B model, 0.1 ms on an H200. The layout depends on the lengths alone, which are the
same in all layers. Here the first layer's call computes it, also inside a CUDA graph, and the other layers use it.
SGLANG_ADAPTIVE_VERIFY_SCHEDULE=0 in the server's environment restores SGLang's code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from sglang_adaptive.sglang_plugin import env
from sglang_adaptive.sglang_plugin.guard import Guard


class VerifySchedule:
    """The tile schedules of fa3's verify passes."""

    def __init__(self) -> None:
        self.guard = Guard(
            "adaptive: each layer of a verify pass makes its own schedule from now on", env.VERIFY_SCHEDULE
        )
        self._current: Any = None
        """The schedule for the attention call that runs; None for a call that computes its own."""
        self._passes: WeakKeyDictionary[Any, tuple[int, Any]] = WeakKeyDictionary()
        """By backend, the layer that attended last, and the schedule of its pass."""

    @contextmanager
    def of(self, backend: Any, layer: Any, forward_batch: Any) -> Iterator[None]:
        """Let fa3's call for *layer* inside the ``with`` use the schedule of its verify pass."""
        if forward_batch.forward_mode.is_target_verify():
            self._current = self.guard.attempt(self._schedule, backend, layer, forward_batch)
        try:
            yield
        finally:
            self._current = None

    def arguments(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of fa3's call, with the schedule of its pass."""
        return given if self._current is None else {**given, "scheduler_metadata": self._current}

    def _schedule(self, backend: Any, layer: Any, forward_batch: Any) -> Any:
        """Return the schedule of the pass that *layer* is in; None where the layer needs one of its own.

        A pass runs the layers in ascending order, so a layer id that does not increase begins another pass.
        """
        if not _plain(backend, layer, forward_batch):
            return None
        before, schedule = self._passes.get(backend, (None, None))
        if before is None or layer.layer_id <= before:
            schedule = _computed(backend)
        self._passes[backend] = (layer.layer_id, schedule)
        return schedule


def _plain(backend: Any, layer: Any, forward_batch: Any) -> bool:
    """Whether the layer attends to all tokens of each request, as the verify pass of a chain does.

    DFLASH's draft runs as a verify pass, and attends to a block in both directions.
    A layer whose values are narrower than its keys has other tiles than those that the schedule is computed for.
    """
    from sglang.srt.layers.radix_attention import AttentionType

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
        and layer.attn_type == AttentionType.DECODER
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
