"""Shares one buffer for the hidden states of all verify graphs, for all steps and batch sizes.

An EAGLE-3 draft reads hidden states of three of the target's layers, which are joined at the end of the verify pass. A
CUDA graph keeps its output, so SGLang 0.5.23 holds (requests, steps + 1, 3 x hidden size) numbers for each batch size
and each number of steps: 0.36 GB for six numbers of steps of an 8B Llama with graphs of 27 sizes up to 64 requests. The
draft extend reads them within the round, before another verify pass runs. So every graph can write to the same rows, as
SGLang does for drafts of the DFlash family.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from sglang_adaptive.sglang_plugin.hooking.fallback import Fallback

_fallback = Fallback("adaptive: each verify graph captured from now on keeps hidden states of its own")
_buffers: dict[Hashable, torch.Tensor] = {}
_capturing = False
"""Whether a verify pass is being captured, or run once before its capture."""


def capture_one(original: Callable[..., None], backend: Any, *args: Any, **kwargs: Any) -> None:
    """Around FullCudaGraphBackend.capture_one: note whether it captures a verify pass."""
    global _capturing
    runner = backend._cuda_graph_runner
    mode = getattr(runner, "capture_forward_mode", None)
    _capturing = mode is not None and mode.is_target_verify() and not runner.enable_torch_compile
    try:
        original(backend, *args, **kwargs)
    finally:
        _capturing = False


def join(original: Callable[[Any], torch.Tensor], hidden_states: Any) -> torch.Tensor:
    """Around pack_aux_hidden_states: join the list of [tokens, hidden size] into the shared buffer during a capture."""
    if _capturing and not _fallback.in_use and isinstance(hidden_states, list) and len(hidden_states) > 1:
        with _fallback:
            if len({part.dtype for part in hidden_states}) == 1:
                return torch.cat(hidden_states, dim=-1, out=_rows(hidden_states))
    return original(hidden_states)


def _rows(hidden_states: list[torch.Tensor]) -> torch.Tensor:
    """Return rows of the buffer, [tokens, sum of widths]; it grows in the run before a capture."""
    first, width = hidden_states[0], sum(part.shape[-1] for part in hidden_states)
    alike = (width, first.dtype, first.device)
    held = _buffers.get(alike)
    if held is None or len(held) < len(first):
        held = _buffers[alike] = first.new_empty(len(first), width)
    return held[: len(first)]
