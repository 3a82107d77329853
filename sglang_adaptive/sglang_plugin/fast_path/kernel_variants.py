"""Keeps three Triton kernels from being compiled again while serving because of a tensor's alignment.

Triton compiles a kernel for every combination of pointers that are and are not multiples of 16 bytes. The slots of a
batch begin anywhere in the list of free ones. So three kernels of SGLang 0.5.23 get new combinations long after
start-up, whatever a warm-up runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ALIGNMENT = 16
"""Alignment in bytes for which Triton specialises."""


def aligned(sources: Sequence[Any]) -> list[Any]:
    """Return the tensors that SGLang is about to copy in one launch, each at an aligned address."""
    return [source.clone() if source.is_cuda and source.data_ptr() % ALIGNMENT else source for source in sources]


def ignore_alignment() -> None:
    """Compile the kernels that write slots without variants for alignment; call it before their first launch."""
    from sglang.kernels.ops.memory.common import write_req_to_token_pool_triton
    from sglang.srt.mem_cache.allocation import assign_req_to_token_pool

    for kernel in (write_req_to_token_pool_triton, assign_req_to_token_pool):
        for parameter in getattr(kernel, "params", ()):
            # Triton refuses a constant with this flag.
            parameter.do_not_specialize_on_alignment = not parameter.is_constexpr
