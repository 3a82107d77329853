"""Completes the target's attention backend of each runtime state like the one built at start-up.

SGLang 0.5.23 builds the backend of a state with ``ModelRunner._get_attention_backend`` alone. The start-up backend also
has its resolved names, by which models choose a kernel, and the runner's translator of KV indices. Without these a
state would use the configured names, and on a pool with virtual ids the wrong indices.
"""

from __future__ import annotations

from typing import Any


def finished(backend: Any, model_runner: Any) -> Any:
    """Return *backend*, just built for *model_runner*, with its names and the translator."""
    backend.prefill_attention_backend_str = model_runner.prefill_attention_backend_str
    backend.decode_attention_backend_str = model_runner.decode_attention_backend_str
    model_runner.kv_index_translator.bind_and_verify_backends([backend])
    return backend
