"""Launches compiled Triton kernels without Triton's lookup, whatever the alignment of their tensors.

For each launch Triton 3.8 inspects every argument and builds a string to find the compiled kernel. Here the caller
names what a kernel was compiled for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import triton

from sglang_adaptive.sglang_plugin.stage import Rest, Stage


class Launches:
    """Launches of one kernel."""

    def __init__(self, kernel: Any) -> None:
        """*kernel* is from triton.jit, specialized for no numbers or alignments that a kind does not distinguish."""
        self._kernel = kernel
        self._compiled: dict[Hashable, Any] = {}

    def __call__(self, kind: Hashable, grid: tuple[int, int], *args: Any) -> None:
        """Launch the kernel with *args*, including its constants, on the current stream.

        *kind* is all that it is compiled for: its constants, and the types of other arguments or that they are None.
        """
        compiled = self._compiled.get(kind)
        if compiled is None:  # Triton's interpreter compiles nothing
            self._compiled[kind] = self._kernel[grid](*args)
            return
        stream = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
        compiled.run(grid[0], grid[1], 1, stream, compiled.function, compiled.packed_metadata, None, None, None, *args)


def launched(function: Callable[..., None]) -> Launches:
    """Return the launches of a kernel that is compiled for no numbers and no alignments; decorates its function."""
    parameters = inspect.signature(function).parameters.values()
    arguments = [one.name for one in parameters if one.annotation != "tl.constexpr"]
    return Launches(triton.jit(function, do_not_specialize=arguments))


ALIGNMENT = 16
"""Alignment in bytes that Triton specializes for."""


class AlignedCopies(Stage):
    """Keeps three Triton kernels from being recompiled during serving because of a tensor's alignment.

    Triton compiles a kernel for every combination of pointers that are and are not multiples of 16 bytes. The slots of
    a batch start anywhere in the free list, so three kernels of SGLang 0.5.23 get new combinations long after start-up,
    whatever a warm-up runs.
    """

    def small_copy(self, rest: Rest, dsts: Sequence[Any], srcs: Sequence[Any]) -> bool:
        aligned = [source.clone() if source.is_cuda and source.data_ptr() % ALIGNMENT else source for source in srcs]
        return rest(dsts, aligned)  # type: ignore[no-any-return]


def ignore_alignment() -> None:
    """Compile the kernels that write slots without variants for alignment; call it before their first launch."""
    from sglang.kernels.ops.memory.common import write_req_to_token_pool_triton
    from sglang.srt.mem_cache.allocation import assign_req_to_token_pool

    for kernel in (write_req_to_token_pool_triton, assign_req_to_token_pool):
        for parameter in getattr(kernel, "params", ()):
            # Triton rejects a constant with this flag.
            parameter.do_not_specialize_on_alignment = not parameter.is_constexpr
