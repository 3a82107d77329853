"""Two of SGLang's layers in fewer operators: for a small model, each call costs more than its arithmetic.

The arithmetic and its order are SGLang's, so results are bit-identical. Anything beyond what a plain Llama needs is
left to SGLang.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import rms_norm

if TYPE_CHECKING:
    from torch import Tensor


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
