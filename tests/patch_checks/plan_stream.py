"""0008: The plan stream's question after a draft."""

from __future__ import annotations

from typing import Any

from tests.patch_checks.registry import kept, repaired


@repaired
def a_chain_on_fa3_and_flashinfer_needs_no_correction() -> None:
    silent = [backend.__name__ for backend in backends() if not answers(backend, topk=1)]
    assert silent == [], f"these backends do not answer: {silent}"


@kept
def a_tree_on_fa3_and_flashinfer_has_no_answer() -> None:
    accepting = [backend.__name__ for backend in backends() if answers(backend, topk=4)]
    assert accepting == [], f"these backends accept a tree: {accepting}"


def backends() -> tuple[type, ...]:
    """Return the classes; without a GPU, fa3's module lacks a kernel that it names but that nothing here calls."""
    import sgl_kernel

    if not hasattr(sgl_kernel, "merge_state_v2"):
        sgl_kernel.merge_state_v2 = None
    from sglang.srt.layers.attention.flashattention_backend import FlashAttentionBackend
    from sglang.srt.layers.attention.flashinfer_backend import FlashInferAttnBackend
    from sglang.srt.layers.attention.flashinfer_mla_backend import FlashInferMLAAttnBackend

    return FlashAttentionBackend, FlashInferAttnBackend, FlashInferMLAAttnBackend


def answers(backend: Any, topk: int) -> bool:
    """Ask like run_eagle_verify, with a verify of *topk* branches; return whether there is an answer."""
    from sglang.srt.speculative.eagle_info import EagleVerifyInput

    verify = EagleVerifyInput.create_idle_input(topk=topk, spec_steps=3, num_verify_tokens=4, device="cpu")
    try:
        object.__new__(backend).update_verify_buffers_to_fill_after_draft(verify, None)
    except NotImplementedError:
        return False
    return True
