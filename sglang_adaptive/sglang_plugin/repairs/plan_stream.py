"""SGLang's plan stream on attention backends that lack its last step.

With ``SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1`` SGLang prepares a verify on a second CUDA stream and then asks the target's
attention backend to correct what it had planned without knowing the draft. fa3 and flashinfer do not implement the
question and the scheduler ends at its first verify. A chain has nothing to correct.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CHAIN_BACKENDS = frozenset(
    {
        "FlashAttentionBackend",
        "FlashInferAttnBackend",
        "FlashInferMLAAttnBackend",
        "TorchRefBackend",  # the CPU engine's: a CPU has no second stream
    }
)
"""Classes of backends whose plan of a chain's verify is final once made."""


def asked() -> bool:
    """Return whether SGLang's plan stream is asked for."""
    from sglang.srt.environ import envs

    return bool(envs.SGLANG_ENABLE_OVERLAP_PLAN_STREAM.get())


def nothing_to_correct(original: Callable[..., None], backend: Any, spec_info: Any, cuda_graph_bs: int | None) -> None:
    """Around AttentionBackend.update_verify_buffers_to_fill_after_draft, the base class's, which raises.

    A chain's metadata comes from lengths, the request table and the width of the verify. SGLang 0.5.23 plans after the
    draft, so a flashinfer plan has packed the finished mask; drafted tokens and positions are copied once more before
    the graph is replayed. Raises NotImplementedError for a tree, whose mask decides the metadata.
    """
    if CHAIN_BACKENDS.isdisjoint(cls.__name__ for cls in type(backend).__mro__):
        return original(backend, spec_info, cuda_graph_bs)
    if spec_info.topk > 1:
        raise NotImplementedError(
            f"SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1 with {type(backend).__name__} verifies chains only, and "
            f"--speculative-eagle-topk {spec_info.topk} makes a tree: use 1, or unset the variable"
        )
    return None
