"""The page table of the draft's extend, built once a round instead of twice.

The CUDA graph of an extend begins with a kernel that fills in lengths and page tables, as long as each request is.
SGLang 0.5.23 fills them in before every replay as well, in seventeen operations, and for the longest context that the
model allows: 0.16 ms of an H200's time a round at batch 64 and 131,072 tokens, whatever the depth and however short the
requests. Its workers for several draft layers leave that out; here its EAGLE worker does, on fa3.
SGLANG_ADAPTIVE_EXTEND_METADATA=0 in the server's environment leaves SGLang's way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_adaptive.sglang_plugin.hooking.fallback import Fallback

_replaying: Any = None
"""The backend whose graph is about to be replayed, None elsewhere."""

_fallback = Fallback(
    "adaptive: the metadata of the draft's extend is built twice from now on", "SGLANG_ADAPTIVE_EXTEND_METADATA"
)


def execute(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    """Around EAGLEDraftExtendCudaGraphRunner.execute: tell its backend that a replay follows."""
    global _replaying
    _replaying = runner.draft_extend_attn_backend
    try:
        return original(runner, *args, **kwargs)
    finally:
        _replaying = None


def out_graph(original: Callable[..., None], backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
    """Around FlashAttentionBackend.init_forward_metadata_out_graph: leave to the graph what it does itself."""
    if backend is _replaying and not _fallback.in_use:
        with _fallback:
            if _is_in_graph(backend, forward_batch):
                backend.forward_metadata = backend.draft_extend_metadata[forward_batch.batch_size]
                backend.forward_metadata_spec_decode_expand = None
                return
    original(backend, forward_batch, *args, **kwargs)


def _is_in_graph(backend: Any, forward_batch: Any) -> bool:
    """Whether the graph fills in all that there is: by what SGLang says of it, and without tables of other kinds."""
    return bool(
        forward_batch.forward_mode.is_draft_extend_v2()
        and backend.draft_extend_metadata_captured_in_graph()
        and not backend.use_sliding_window_kv_pool
        and forward_batch.encoder_lens is None
    )
