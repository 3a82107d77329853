"""Enables SGLang's plan stream on attention backends that lack its last step.

With ``SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1`` SGLang prepares a verify pass on a second CUDA stream, and then calls the
target's attention backend to correct the plan by the drafts. fa3 and flashinfer do not implement that method, and the
scheduler ends at its first verify. The plan of a chain needs no correction.
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
"""Classes of backends whose plan of a chain's verify needs no correction."""


def asked() -> bool:
    """Return whether SGLang's plan stream is on."""
    from sglang.srt.environ import envs

    return bool(envs.SGLANG_ENABLE_OVERLAP_PLAN_STREAM.get())


def correct(original: Callable[..., None], backend: Any, spec_info: Any, cuda_graph_bs: int | None) -> None:
    """Correct a plan by SGLang's *original*, the base class's method, where a chain does not make that needless.

    A chain's metadata depends on lengths, the request table and the number of draft tokens. SGLang 0.5.23 plans after
    the draft, so a flashinfer plan has the final mask; drafts and positions are copied again before the replay. Raises
    NotImplementedError for a tree, whose mask decides the metadata.
    """
    if CHAIN_BACKENDS.isdisjoint(cls.__name__ for cls in type(backend).__mro__):
        return original(backend, spec_info, cuda_graph_bs)
    if spec_info.topk > 1:
        raise NotImplementedError(
            f"SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1 with {type(backend).__name__} verifies chains only, and "
            f"--speculative-eagle-topk {spec_info.topk} makes a tree: use 1, or unset the variable"
        )
    return None
