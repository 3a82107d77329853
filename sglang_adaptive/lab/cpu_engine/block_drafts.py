"""What SGLang's DFLASH takes to be a GPU's alone, for the CPU engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def as_on_gpu(original: Callable[[Any], None], server_args: Any) -> None:
    """Resolve a line's arguments for DFLASH by SGLang's *original*, which refuses a CPU, and without overlap."""
    from sglang.srt.arg_groups.overrides import declare_resolution
    from sglang.srt.arg_groups.speculative_hook import _disable_overlap_schedule_for_cpu

    _disable_overlap_schedule_for_cpu(server_args)
    declare_resolution(server_args, __name__, device="cuda")
    try:
        original(server_args)
    finally:
        declare_resolution(server_args, __name__, device="cpu")


def in_model_dtype(original: Callable[[Any, Any, Any], dict[str, Any]], runner: Any, batch: Any, proxy: Any) -> Any:
    """Return a pass's arguments by SGLang's *original*, which rounds embeddings that it is given to bfloat16."""
    made = original(runner, batch, proxy)
    if batch.input_embeds is not None and batch.replace_embeds is None:
        made["input_embeds"] = batch.input_embeds.to(runner.dtype)
    return made


def without_streams() -> None:
    """Let a tensor record a stream to no effect: SGLang's DFLASH asks for it, and torch refuses it on a CPU."""
    torch.Tensor.record_stream = lambda self, stream: None
