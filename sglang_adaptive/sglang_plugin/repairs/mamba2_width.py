"""The distance between two requests' verify states in SGLang's Triton kernel of Mamba2: that of the buffer.

The kernel takes ``cache_steps`` as the number of states that the buffer holds for a request. SGLang 0.5.23 passes the
draft tokens of the round, which is the same number only in rounds of the most draft tokens. In any other round the
states of all requests but the first are written elsewhere than where the commit reads them. FlashInfer's kernel reads
the distance from the tensor, and takes ``cache_steps`` as the tokens of the round: it is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def by_the_buffer(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the *arguments* of the kernel with ``cache_steps`` as the steps that the buffer has for a request.

    The buffer is [requests, steps, heads, head size, state size].
    """
    buffer = arguments.get("intermediate_states_buffer")
    if buffer is None:
        return dict(arguments)
    return {**arguments, "cache_steps": buffer_steps(buffer)}


def buffer_steps(buffer: Any) -> int:
    """Return the steps between two requests of *buffer*."""
    return int(buffer.stride(0) // buffer.stride(1))
