"""Runs the attention of zero-step rounds with the decode kernel on SGLang's Triton backend.

A zero-step round verifies one token a request. For a verify pass SGLang 0.5.23's Triton backend uses its prefill
kernel, which has a program for each query head and a tile of queries: for one query the tile is nearly empty, and all
query heads of a group read the same keys again. On an H100 with Llama-3.1-8B's shape such a round takes 1.07 times as
long as a plain decode for one request, and 2.2 times for 64. Here it gets a plain decode's metadata and kernel.
SGLANG_ADAPTIVE_TRITON_DECODE=0 in the server's environment restores SGLang's code.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from sglang_adaptive.sglang_plugin.hooking.fallback import Fallback

_ON_BACKEND = "_sglang_adaptive_decodes"

_fallback = Fallback(
    "adaptive: zero-step rounds use the Triton backend's prefill kernel from now on", "SGLANG_ADAPTIVE_TRITON_DECODE"
)


def init_metadata(original: Callable[..., None], backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
    """Around what makes the metadata of the Triton backend: make a plain decode's for a zero-step round."""
    if forward_batch.forward_mode.is_target_verify() and _decodes(backend):
        forward_batch = _as_decode(forward_batch)
    original(backend, forward_batch, *args, **kwargs)


def forward_extend(
    original: Callable[..., Any], backend: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """Around the Triton backend's forward_extend: run forward_decode where the metadata is a plain decode's."""
    if forward_batch.forward_mode.is_target_verify() and backend.forward_metadata.qo_indptr is None:
        return backend.forward_decode(q, k, v, layer, forward_batch, *args, **kwargs)
    return original(backend, q, k, v, layer, forward_batch, *args, **kwargs)


def _decodes(backend: Any) -> bool:
    """Whether *backend* verifies with the decode kernel. A CUDA graph has one kernel, so this never changes."""
    if not hasattr(backend, _ON_BACKEND):
        setattr(backend, _ON_BACKEND, False)
        if not _fallback.in_use:
            with _fallback:
                setattr(backend, _ON_BACKEND, _verifies_one(backend))
    return bool(getattr(backend, _ON_BACKEND))


def _verifies_one(backend: Any) -> bool:
    """Whether *backend* verifies one token a request, and would read keys and values in a plain decode as usual.

    Sliding windows are left out: no GPU has shown them right.
    """
    return (
        backend.num_draft_tokens == 1
        and (backend.sliding_window_size or 0) <= 0
        and not backend.is_draft_runner
        and not backend.use_mla
        and not backend.enable_deterministic
        and backend.dcp_size == 1
        and not backend.kv_index_translator.is_translating
    )


def _as_decode(forward_batch: Any) -> Any:
    """Return *forward_batch* as a plain decode has it: there the lengths include the token that is decoded."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    decode = copy.copy(forward_batch)
    decode.forward_mode, decode.spec_info = ForwardMode.DECODE, None
    decode.seq_lens = forward_batch.seq_lens + 1
    if forward_batch.seq_lens_sum is not None:
        decode.seq_lens_sum = forward_batch.seq_lens_sum + forward_batch.batch_size
    return decode
