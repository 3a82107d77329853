"""Launches Triton kernels as they were compiled before, whatever the alignment of their tensors.

For each launch Triton 3.8 looks at every argument, and writes what it finds into a string, to find the compiled kernel.
Launched again and again, the kernel of `length_kernel.py` takes 16.5 us on the host of an H200 by Triton, and 8.6 here.
Who launches through here names what a kernel was compiled for.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch


class Launches:
    """Launches of one kernel."""

    def __init__(self, kernel: Any) -> None:
        """*kernel* is of triton.jit, not specialized for numbers and alignments beyond what a kind tells apart."""
        self._kernel = kernel
        self._compiled: dict[Hashable, Any] = {}

    def __call__(self, kind: Hashable, grid: tuple[int, int], *args: Any) -> None:
        """Launch the kernel with *args*, those of its constants included, on the current stream.

        *kind* is all that it is compiled for: its constants, and of other arguments types, and whether they are None.
        """
        compiled = self._compiled.get(kind)
        if compiled is None:  # an interpreter compiles nothing
            self._compiled[kind] = self._kernel[grid](*args)
            return
        stream = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
        compiled.run(grid[0], grid[1], 1, stream, compiled.function, compiled.packed_metadata, None, None, None, *args)


# Keeps three Triton kernels from being compiled again while serving because of a tensor's alignment.
#
# Triton compiles a kernel for every combination of pointers that are and are not multiples of 16 bytes. The slots of
# a batch begin anywhere in the list of free ones. So three kernels of SGLang 0.5.23 get new combinations long after
# start-up, whatever a warm-up runs.


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
