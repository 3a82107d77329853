"""Builds the page table of the draft extend once a round instead of twice, on fa3.

The CUDA graph of a draft extend begins with a kernel that fills in lengths and page tables up to each request's length.
SGLang 0.5.23 also fills them in before every replay, in seventeen operations and for the longest context that the model
allows. On an H200 that takes 0.16 ms a round at batch 64 and 131,072 tokens, for any steps and any request lengths.
SGLang's workers for several draft layers leave it out already; this hook leaves it out of the EAGLE worker.
SGLANG_ADAPTIVE_EXTEND_METADATA=0 in the server's environment restores SGLang's code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_adaptive.sglang_plugin.hooking.fallback import Fallback

_replaying: Any = None
"""The backend whose graph is about to be replayed; None at other times."""

_fallback = Fallback(
    "adaptive: the metadata of the draft's extend is built twice from now on", "SGLANG_ADAPTIVE_EXTEND_METADATA"
)


def execute(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    """Around EAGLEDraftExtendCudaGraphRunner.execute: note its backend while it prepares a replay."""
    global _replaying
    _replaying = runner.draft_extend_attn_backend
    try:
        return original(runner, *args, **kwargs)
    finally:
        _replaying = None


def out_graph(original: Callable[..., None], backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
    """Around FlashAttentionBackend.init_forward_metadata_out_graph: skip what the graph itself fills in."""
    if backend is _replaying and not _fallback.in_use:
        with _fallback:
            if _is_in_graph(backend, forward_batch):
                backend.forward_metadata = backend.draft_extend_metadata[forward_batch.batch_size]
                backend.forward_metadata_spec_decode_expand = None
                return
    original(backend, forward_batch, *args, **kwargs)


def _is_in_graph(backend: Any, forward_batch: Any) -> bool:
    """Whether the graph fills in all metadata: SGLang says so, and there are no tables of other kinds."""
    return bool(
        forward_batch.forward_mode.is_draft_extend_v2()
        and backend.draft_extend_metadata_captured_in_graph()
        and not backend.use_sliding_window_kv_pool
        and forward_batch.encoder_lens is None
    )
