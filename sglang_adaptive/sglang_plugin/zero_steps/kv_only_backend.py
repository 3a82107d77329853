"""A pass of the draft that ends once its keys and values are in the pool.

The output of a draft extend is needed only where drafting resumes, and at intervals for shadow acceptance
(shadow.py). Keys and values of a draft of one layer depend on the input of the layer alone. So an
attention backend that writes them and ends the pass saves the attention, the MLP and the vocabulary, half of the pass
or more. It runs without a CUDA graph, and for any draft model.
"""

from __future__ import annotations

from typing import Any, NoReturn


class Written(Exception):
    """Raised once the keys and values are in the pool, to end the pass."""


class KvOnlyBackend:
    """An attention backend that writes keys and values and ends the pass; other attributes are *backend*'s."""

    def __init__(self, backend: Any, pool: Any) -> None:
        self._backend, self._pool = backend, pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Do nothing: the pass has no attention."""

    def forward(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **_: Any
    ) -> NoReturn:
        """Write *k* and *v* as the backend would, unless the model has done so, and raise Written."""
        from sglang.srt.mem_cache.memory_pool import KVWriteLoc

        if save_kv_cache:
            where = KVWriteLoc.for_layer(forward_batch, layer)
            scales = () if layer.k_scale is None else (layer.k_scale, layer.v_scale)
            self._pool.set_kv_buffer(layer, where, k, v, *scales)
        raise Written


def fits(draft: Any) -> bool:
    """Whether a pass of *draft* can end early: one layer, a plain pool, no context parallelism."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.runtime_context import get_parallel

    pool = draft.draft_runner.token_to_kv_pool
    return type(pool) is MHATokenToKVPool and pool.layer_num == 1 and get_parallel().attn_cp_size == 1
