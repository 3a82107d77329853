"""KV pools that take memory as they are written, not for all of their slots at the start.

SGLang fills its buffers with zeros, which on a CPU allocates all of them: 3 GB for SmolLM2's 65,536 slots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor


def create_buffers(original: Callable[[Any], None], pool: Any) -> None:
    """Let SGLang's *original* create the buffers of *pool*, with zeros that the system provides page by page."""
    usual = torch.zeros

    def zeros(shape: Sequence[int], *, dtype: torch.dtype, device: Any) -> Tensor:
        if torch.device(device).type != "cpu":
            return usual(shape, dtype=dtype, device=device)
        raw = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
        return torch.from_numpy(raw).view(dtype).view(tuple(shape))

    torch.zeros = zeros  # type: ignore[assignment]
    try:
        original(pool)
    finally:
        torch.zeros = usual
