"""Triton kernels that would load another variant while serving, for no more than where a tensor begins.

Triton compiles a kernel anew for every combination of pointers that are and are not multiples of 16 bytes. The slots of
a batch are cut off the list of free ones at any place, so three kernels of SGLang 0.5.23 meet new combinations long
after start-up, whatever a warm-up runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

ALIGNMENT = 16
"""Bytes that Triton looks for."""


def copy_from_aligned(original: Callable[..., bool], dsts: Sequence[Any], srcs: Sequence[Any]) -> bool:
    """Around try_small_copy, one launch for several small copies: give it aligned sources alone."""
    return original(dsts, [src.clone() if src.is_cuda and src.data_ptr() % ALIGNMENT else src for src in srcs])


def ignore_alignment(worker: Any) -> None:
    """Before EAGLEWorkerV2.init_cuda_graphs, which nothing is launched before: for the kernels that write slots."""
    from sglang.kernels.ops.memory.common import write_req_to_token_pool_triton
    from sglang.srt.mem_cache.allocation import assign_req_to_token_pool

    for kernel in (write_req_to_token_pool_triton, assign_req_to_token_pool):
        for parameter in getattr(kernel, "params", ()):
            # Triton refuses to compile a constant that is named so.
            parameter.do_not_specialize_on_alignment = not parameter.is_constexpr
