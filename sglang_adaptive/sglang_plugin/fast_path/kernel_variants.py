"""Keeps three Triton kernels from being compiled again while serving because of a tensor's alignment.

Triton compiles a kernel for every combination of pointers that are and are not multiples of 16 bytes. The slots of a
batch begin anywhere in the list of free ones. So three kernels of SGLang 0.5.23 get new combinations long after
start-up, whatever a warm-up runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

ALIGNMENT = 16
"""Alignment in bytes for which Triton specialises."""


def copy_from_aligned(original: Callable[..., bool], dsts: Sequence[Any], srcs: Sequence[Any]) -> bool:
    """Around try_small_copy, one launch for several small copies: pass aligned sources only."""
    return original(dsts, [src.clone() if src.is_cuda and src.data_ptr() % ALIGNMENT else src for src in srcs])


def ignore_alignment(worker: Any) -> None:
    """Before EAGLEWorkerV2.init_cuda_graphs, the first launch: compile the slot kernels without alignment variants."""
    from sglang.kernels.ops.memory.common import write_req_to_token_pool_triton
    from sglang.srt.mem_cache.allocation import assign_req_to_token_pool

    for kernel in (write_req_to_token_pool_triton, assign_req_to_token_pool):
        for parameter in getattr(kernel, "params", ()):
            # Triton refuses a constant with this flag.
            parameter.do_not_specialize_on_alignment = not parameter.is_constexpr
