"""Makes SGLang's DFLASH, which SGLang supports only on a GPU, run on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sglang_adaptive.lab.cpu_engine.kernels.sample import sample_tree_cpu


def resolve_as_on_gpu(original: Callable[[Any, Any], None], algorithm: Any, server_args: Any) -> None:
    """Resolve an algorithm's arguments with SGLang's *original*, which rejects DFLASH on a CPU.

    DFLASH then runs without overlap, as EAGLE does on a CPU.
    """
    if algorithm.name != "DFLASH":
        return original(algorithm, server_args)
    from sglang.srt.arg_groups import speculative_hook
    from sglang.srt.arg_groups.overrides import declare_resolution

    speculative_hook._disable_overlap_schedule_for_cpu(server_args)
    declare_resolution(server_args, __name__, device="cuda")
    try:
        original(algorithm, server_args)
    finally:
        declare_resolution(server_args, __name__, device="cpu")


def samples() -> bool:
    """Give DFLASH a kernel that verifies sampled requests, which SGLang lacks on a CPU; return True."""
    from sglang.srt.speculative import dflash_utils

    dflash_utils.tree_speculative_sampling_target_only = sample_tree_cpu
    dflash_utils._DFLASH_SAMPLING_VERIFY_AVAILABLE = True
    return True


def likeliest(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's *k* largest *scores* and their indices; SGLang would call FlashInfer, which needs a GPU."""
    found = torch.topk(scores, k, dim=-1)
    return found.values, found.indices


def without_streams() -> None:
    """Make ``record_stream`` of tensors do nothing: DFLASH calls it, and torch has no streams on a CPU."""
    torch.Tensor.record_stream = lambda self, stream: None  # type: ignore[method-assign]


def in_model_dtype(original: Callable[[Any, Any, Any], dict[str, Any]], runner: Any, batch: Any, proxy: Any) -> Any:
    """Return a pass's arguments from SGLang's *original*, which rounds the given embeddings to bfloat16."""
    made = original(runner, batch, proxy)
    if batch.input_embeds is not None and batch.replace_embeds is None:
        made["input_embeds"] = batch.input_embeds.to(runner.dtype)
    return made
