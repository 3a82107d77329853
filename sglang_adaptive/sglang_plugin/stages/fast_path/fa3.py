"""Skips work on fa3 that a round has already done: a tile schedule, a page table and copies of queries."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch

from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.stage import Rest, Stage


class ExtendMetadata(Stage):
    """Builds the page table of the draft extend once per round instead of twice, on fa3.

    The CUDA graph of a draft extend starts with a kernel that fills in lengths and page tables. SGLang 0.5.23 also
    fills them in before every replay, with seventeen operations and for the model's longest context: 0.16 ms per round
    at batch size 64 and 131,072 tokens on an H200. Its workers for several draft layers skip it, and here EAGLE's too.
    """

    def __init__(self) -> None:
        self.guard = Guard("extend-metadata")
        self._replaying: Any = None
        """The backend whose graph is about to be replayed; None at other times."""

    def replay_extend(self, rest: Rest, graphs: Any, *args: Any, **kwargs: Any) -> Any:
        self._replaying = graphs.draft_extend_attn_backend
        try:
            return rest(graphs, *args, **kwargs)
        finally:
            self._replaying = None

    def fa3_metadata(self, rest: Rest, backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
        """Build the metadata before a replay, unless the graph fills in all of it."""
        if backend is not self._replaying or not self.guard.attempt(_bound, backend, forward_batch):
            rest(backend, forward_batch, *args, **kwargs)


def _bound(backend: Any, forward_batch: Any) -> bool:
    """Bind the graph's metadata to *backend*; False where SGLang has to fill in more, such as other tables."""
    if not (
        forward_batch.forward_mode.is_draft_extend_v2()
        and backend.draft_extend_metadata_captured_in_graph()
        and not backend.use_sliding_window_kv_pool
        and forward_batch.encoder_lens is None
    ):
        return False
    backend.forward_metadata = backend.draft_extend_metadata[forward_batch.batch_size]
    backend.forward_metadata_spec_decode_expand = None
    return True


class VerifySchedule(Stage):
    """Computes fa3's tile schedule once per verify pass instead of once per layer.

    FlashAttention 3 starts each variable-length call with a kernel that lays out its tiles by the lengths, which are
    the same in all layers. SGLang 0.5.23 shares the layout in a plain decode, but not in a verify pass: 32 kernels per
    round of an 8B model, 0.1 ms on an H200. Here the first layer's call computes it, also inside a CUDA graph.
    """

    def __init__(self) -> None:
        self.guard = Guard("verify-schedule")
        self._current: Any = None
        """The schedule for the current attention call; None if the call computes its own."""
        self._passes: WeakKeyDictionary[Any, tuple[int, Any]] = WeakKeyDictionary()
        """By backend, the layer that ran last and the schedule of its pass."""

    def fa3_attention(
        self, rest: Rest, backend: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Run attention; the call of fa3 uses the schedule of its verify pass."""
        if forward_batch.forward_mode.is_target_verify():
            self._current = self.guard.attempt(self._schedule, backend, layer)
        try:
            return rest(backend, q, k, v, layer, forward_batch, *args, **kwargs)
        finally:
            self._current = None

    def fa3_kernel(self, rest: Rest, *args: Any, **kwargs: Any) -> Any:
        if self._current is not None:
            kwargs["scheduler_metadata"] = self._current
        return rest(*args, **kwargs)

    def _schedule(self, backend: Any, layer: Any) -> Any:
        """Return the schedule of *layer*'s pass; None where the layer needs its own.

        A pass runs the layers in ascending order, so a layer id that does not increase starts a new pass.
        """
        if not _plain_schedule(backend, layer):
            return None
        before, schedule = self._passes.get(backend, (None, None))
        if before is None or layer.layer_id <= before:
            schedule = _computed(backend)
        self._passes[backend] = (layer.layer_id, schedule)
        return schedule


def _plain_schedule(backend: Any, layer: Any) -> bool:
    """Whether the layer attends to all tokens of each request, as the verify pass of a chain does.

    DFLASH's draft runs as a verify pass but attends to a block in both directions. A layer whose values are narrower
    than its keys has different tiles than the schedule.
    """
    from sglang.srt.layers.radix_attention import AttentionType

    window, builds = layer.sliding_window_size, backend._get_scheduler_metadata is not None
    other = backend.use_mla or backend.topk > 1 or backend.is_encoder_decoder or layer.is_cross_attention
    shared = backend.local_attn_builder is not None or backend.attn_cp_size != 1 or backend._kv_shard_pool is not None
    return (
        builds
        and not (backend._disable_scheduler_metadata_precompute or other or shared)
        and layer.attn_type == AttentionType.DECODER
        and (window is None or window < 0)
        and layer.v_head_dim == layer.qk_head_dim
    )


def _computed(backend: Any) -> Any:
    """Compute the schedule for SGLang's verify call on the device; nothing waits for it."""
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


ALIGNED = 16
"""Bytes that the kernel loads at once; rows have to start at multiples of it."""


class _InPlace(torch.Tensor):  # type: ignore[misc, unused-ignore]
    """A tensor whose ``contiguous()`` returns itself; results of other operations are plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def contiguous(self, *args: Any, **kwargs: Any) -> _InPlace:  # type: ignore[override, unused-ignore]
        return self


class QueriesInPlace(Stage):
    """Lets fa3 read queries where the projection wrote them, without a copy.

    One matrix product yields a layer's queries, keys and values side by side for each token, so queries are rows with
    gaps between them. SGLang 0.5.23 calls ``contiguous()`` before each attention kernel, which copies them: 32 kernels
    per round of an 8B model, 0.09 ms on an H200. FlashAttention 3 accepts such rows, so the passes of a round get a
    tensor whose ``contiguous()`` returns itself. Prefills and other attention kernels get the copy.
    """

    def __init__(self) -> None:
        self.guard = Guard("queries-in-place")

    def fa3_attention(
        self, rest: Rest, backend: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Run attention on the queries where they lie, without a copy where possible."""
        if not torch.compiler.is_compiling():  # torch.compile rejects tensor subclasses
            mine = self.guard.attempt(_in_place, backend, q, forward_batch)
            q = q if mine is None else mine
        return rest(backend, q, k, v, layer, forward_batch, *args, **kwargs)


def _in_place(backend: Any, q: Any, forward_batch: Any) -> Any:
    """Return the queries *q*, [tokens, width], with a ``contiguous()`` that does not copy; None where fa3 needs one."""
    mode = forward_batch.forward_mode
    if not (mode.is_decode() or mode.is_draft_extend_v2() or mode.is_target_verify()):
        return None
    # Only one FlashAttention 3 call may read them.
    if backend.fa_impl_ver != 3 or backend.use_mla or backend.topk > 1 or backend.attn_cp_size > 1:
        return None
    has_gaps = q.dim() == 2 and q.stride(1) == 1 and not q.is_contiguous()
    aligned = q.stride(0) * q.element_size() % ALIGNED == 0 and q.data_ptr() % ALIGNED == 0
    return q.as_subclass(_InPlace) if has_gaps and aligned else None
