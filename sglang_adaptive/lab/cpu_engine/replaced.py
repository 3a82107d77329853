"""What runs instead of some of SGLang's functions; `plugin` registers it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from sglang_adaptive.lab.cpu_engine.kernels.sample import sample_tree_cpu

# Makes DFLASH, which SGLang supports only on a GPU, run on a CPU.


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


def likeliest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return each row's *k* largest *scores* and their indices; SGLang would call FlashInfer, which needs a GPU."""
    found = torch.topk(scores, k, dim=-1)
    return found.values, found.indices


def without_streams() -> None:
    """Make ``record_stream`` of tensors do nothing: DFLASH calls it, and torch has no streams on a CPU."""
    Tensor.record_stream = lambda self, stream: None  # type: ignore[method-assign]


def in_model_dtype(original: Callable[[Any, Any, Any], dict[str, Any]], runner: Any, batch: Any, proxy: Any) -> Any:
    """Return a pass's arguments from SGLang's *original*, which rounds the given embeddings to bfloat16."""
    made = original(runner, batch, proxy)
    if batch.input_embeds is not None and batch.replace_embeds is None:
        made["input_embeds"] = batch.input_embeds.to(runner.dtype)
    return made


# KV pools that take memory as they are written, not for all of their slots at the start. SGLang fills its buffers with
# zeros, which on a CPU allocates all of them: 3 GB for SmolLM2's 65,536 slots.


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


# Two layers in fewer operators: for a small model, each call costs more than its arithmetic. The arithmetic and its
# order are SGLang's, so results are bit-identical. Anything beyond what a plain Llama needs is left to SGLang.


def norm(
    original: Callable[..., Any],
    layer: Any,
    x: Tensor,
    residual: Tensor | None = None,
    post_residual_addition: Tensor | None = None,
    quant_linear: Any = None,
) -> Any:
    """Return *x* [tokens, hidden] plus *residual*, if any, normalized by its root mean square; and that sum, if any."""
    special = layer.cast_x_before_out_mul or layer.fp32_residual or layer.override_orig_dtype
    if special or post_residual_addition is not None or layer.variance_size_override or x.dtype != torch.float32:
        return original(layer, x, residual, post_residual_addition, quant_linear)
    total = x if residual is None else x + residual
    normal = rms_norm(total, (layer.hidden_size,), layer.weight, layer.variance_epsilon)
    return normal if residual is None else (normal, total)


def rotate(
    original: Callable[..., Any], layer: Any, positions: Tensor, query: Tensor, key: Tensor, *rest: Any, **more: Any
) -> tuple[Tensor, Tensor]:
    """Return *query* and *key* [tokens, heads * head_size] with each head rotated by its token's position.

    SGLang's table has [cos, sin] for each position; (a, b) becomes (a cos - b sin, b cos + a sin).
    """
    table, whole = layer.cos_sin_cache, layer.rotary_dim == layer.head_size and layer.is_neox_style
    if rest or more or not whole or hasattr(layer, "sin_cos_cache") or not table.dtype == query.dtype == torch.float32:
        turned: tuple[Tensor, Tensor] = original(layer, positions, query, key, *rest, **more)
        return turned
    both = torch.cat((query, key), dim=-1)
    heads = both.view(len(both), both.shape[-1] // layer.head_size, layer.head_size)
    cos, sin = table.index_select(0, positions.flatten()).unsqueeze(1).chunk(2, dim=-1)
    first, second = heads.chunk(2, dim=-1)
    both = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    query_size, key_size = query.shape[-1], key.shape[-1]
    new_query, new_key = both.view(*query.shape[:-1], query_size + key_size).split((query_size, key_size), dim=-1)
    return new_query, new_key
