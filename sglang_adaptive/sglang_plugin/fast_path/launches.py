"""Launches Triton kernels as they were compiled before, without asking again for what.

For each launch Triton 3.8 looks at every argument, and writes what it finds into a string, to find the compiled kernel.
Launched again and again, the kernel of `length_kernel.py` takes 16.5 us on the host of an H200 by Triton, and 8.6 here.
Who launches through here names what a kernel was compiled for.
"""

from __future__ import annotations

from collections.abc import Hashable
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
