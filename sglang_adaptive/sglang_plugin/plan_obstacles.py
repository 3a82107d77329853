"""Where a verify must not be planned before its draft has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_FA3 = "sglang.srt.layers.attention.flashattention_backend.FlashAttentionBackend"

# What each names is planned from something else than lengths, the request table and the round's slots, is computed
# on first use by whichever stream comes first, or was not looked into.
_TARGET: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("the model uses M-RoPE positions", lambda target: target.model_config.model_is_mrope),
    ("LoRA is on", lambda target: target.lora_manager),
    ("HiSparse is on", lambda target: target.hisparse_coordinator),
    ("the KV canary is on", lambda target: target.canary_manager),
    ("the model embeds n-grams", lambda target: target.ngram_embedding_manager.enabled),
    ("the KV pool translates slots", lambda target: target.kv_index_translator.is_translating),
)
_BACKEND: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("drafts are trees", lambda backend: backend.topk > 1),
    ("attention has a sliding window", lambda backend: backend.has_swa or backend.use_sliding_window_kv_pool),
    ("attention is local", lambda backend: backend.local_attn_builder),
    ("the model has an encoder", lambda backend: backend.is_encoder_decoder),
)
_GRAPHS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("verify widths differ by request", lambda graphs: graphs.ragged_verify_mode),
    ("metadata is made by a graph of its own", lambda graphs: graphs._metadata_glue),
    ("two batches overlap", lambda graphs: graphs.enable_two_batch_overlap),
    ("prefill and decode are multiplexed", lambda graphs: graphs.enable_pdmux),
    ("ranks gather their batches", lambda graphs: graphs.require_gathered_buffer),
)


def obstacle(target: Any) -> str | None:
    """Return why *target*, the ModelRunner about to verify, must not be planned for during the draft, or None."""
    backend, graphs = target.attn_backend, target.decode_cuda_graph_runner
    name = f"{type(backend).__module__}.{type(backend).__qualname__}"
    if name != _FA3:
        return f"{type(backend).__qualname__} is not fa3"
    if graphs is None:
        return "this depth has no CUDA graph of the verify"
    checks = ((_TARGET, target), (_BACKEND, backend), (_GRAPHS, graphs))
    found = [reason for table, where in checks for reason, holds in table if holds(where)]
    return found[0] if found else _of_process()


def _of_process() -> str | None:
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_parallel

    if get_parallel().pp_size > 1:
        return "pipeline parallelism drafts in the round before"
    if envs.SGLANG_ENABLE_ASYNC_ASSERT.get():
        return "SGLANG_ENABLE_ASYNC_ASSERT checks the drafted tokens while planning"
    return None
