"""The target's attention backend of each depth, finished as the start-up one is.

SGLang 0.5.23 builds the backend of a depth with ``ModelRunner._get_attention_backend`` and stops. The start-up one
also carries the names it was resolved to, which models ask for to choose a kernel, and the runner's translator of KV
indices, which producers of indices read off the backend. Without them a depth falls back to the configured names, and
on a pool whose ids are virtual it would index with those.
"""

from __future__ import annotations

from typing import Any


def finish(backend: Any, model_runner: Any, *args: Any, **kwargs: Any) -> Any:
    """After ModelRunner._get_attention_backend: record the names and bind the translator."""
    backend.prefill_attention_backend_str = model_runner.prefill_attention_backend_str
    backend.decode_attention_backend_str = model_runner.decode_attention_backend_str
    model_runner.kv_index_translator.bind_and_verify_backends([backend])
    return backend
