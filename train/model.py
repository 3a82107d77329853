"""The Llama parts that the target and the draft share, with Hugging Face's parameter names."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelSize:
    """Widths of both models; they share all of them, so the draft can use the target's embedding."""

    vocab: int = 260
    hidden: int = 128
    layers: int = 8
    heads: int = 4
    kv_heads: int = 4
    ffn: int = 192
    positions: int = 8192
    rope_theta: float = 10000.0
    eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def feature_layers(self) -> tuple[int, int, int]:
        """Layers whose INPUT the draft reads: SGLang's default for EAGLE-3."""
        return 2, self.layers // 2, self.layers - 3


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rotary(positions: Tensor, size: ModelSize) -> tuple[Tensor, Tensor]:
    """Cosine and sine, each [T, head_dim], in the half-split layout that Llama checkpoints use."""
    exponents = torch.arange(0, size.head_dim, 2) / size.head_dim
    angles = positions[:, None] * size.rope_theta**-exponents
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos_sin: tuple[Tensor, Tensor]) -> Tensor:
    """Apply rotary positions to x [..., T, head_dim]."""
    cos, sin = cos_sin
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


class Attention(nn.Module):
    """Grouped-query attention; *width_in* is twice the hidden size in the draft (embedding and feature)."""

    def __init__(self, size: ModelSize, width_in: int) -> None:
        super().__init__()
        self.size = size
        self.q_proj = nn.Linear(width_in, size.heads * size.head_dim, bias=False)
        self.k_proj = nn.Linear(width_in, size.kv_heads * size.head_dim, bias=False)
        self.v_proj = nn.Linear(width_in, size.kv_heads * size.head_dim, bias=False)
        self.o_proj = nn.Linear(size.heads * size.head_dim, size.hidden, bias=False)

    def qkv(self, x: Tensor, cos_sin: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated q, k and plain v of x [B, T, width_in], each [B, heads, T, head_dim]."""

        def split(y: Tensor) -> Tensor:
            return y.unflatten(-1, (-1, self.size.head_dim)).transpose(1, 2)

        group = self.size.heads // self.size.kv_heads
        q, k, v = split(self.q_proj(x)), split(self.k_proj(x)), split(self.v_proj(x))
        k = rotate(k, cos_sin)
        return rotate(q, cos_sin), k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)

    def merge(self, heads: Tensor) -> Tensor:
        """Project the heads' outputs [B, heads, T, head_dim] back to [B, T, hidden]."""
        return self.o_proj(heads.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size.hidden, size.ffn, bias=False)
        self.up_proj = nn.Linear(size.hidden, size.ffn, bias=False)
        self.down_proj = nn.Linear(size.ffn, size.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def initialise(model: nn.Module, residual_writes: int) -> None:
    """Initialize the matrices; outputs into the residual stream are scaled down by its number of writers."""
    for name, weight in model.named_parameters():
        if weight.dim() != 2:
            continue
        table = "embed_tokens" in name or "lm_head" in name
        nn.init.normal_(weight, std=0.02 if table else weight.shape[1] ** -0.5)
        if "o_proj" in name or "down_proj" in name:
            weight.data.mul_(residual_writes**-0.5)
