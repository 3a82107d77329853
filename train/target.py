"""The target: a byte-level Llama."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train.model import MLP, Attention, ModelSize, RMSNorm, initialise, rotary


class Cache:
    """Keys and values of every layer for up to *capacity* positions, [layers, B, heads, capacity, head_dim] each."""

    def __init__(self, size: ModelSize, batch: int, capacity: int) -> None:
        self.keys = torch.zeros(size.layers, batch, size.heads, capacity, size.head_dim)
        self.values = torch.zeros_like(self.keys)
        self.length = 0

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new positions of *layer*; return all positions so far, including the new ones."""
        end = self.length + k.shape[2]
        self.keys[layer, :, :, self.length : end] = k
        self.values[layer, :, :, self.length : end] = v
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


class Layer(nn.Module):
    def __init__(self, size: ModelSize, index: int) -> None:
        super().__init__()
        self.index = index
        self.input_layernorm = RMSNorm(size.hidden, size.eps)
        self.self_attn = Attention(size, size.hidden)
        self.post_attention_layernorm = RMSNorm(size.hidden, size.eps)
        self.mlp = MLP(size)

    def forward(self, x: Tensor, cos_sin: tuple[Tensor, Tensor], cache: Cache | None) -> Tensor:
        q, k, v = self.self_attn.qkv(self.input_layernorm(x), cos_sin)
        if cache is not None:
            k, v = cache.extend(self.index, k, v)
        x = x + self.self_attn.merge(F.scaled_dot_product_attention(q, k, v, is_causal=x.shape[1] > 1))
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(size.vocab, size.hidden)
        self.layers = nn.ModuleList(Layer(size, index) for index in range(size.layers))
        self.norm = RMSNorm(size.hidden, size.eps)


class Target(nn.Module):
    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.size = size
        self.model = Body(size)
        self.lm_head = nn.Linear(size.hidden, size.vocab, bias=False)
        initialise(self, residual_writes=2 * size.layers)

    def forward(self, ids: Tensor, cache: Cache | None = None) -> tuple[Tensor, Tensor]:
        """ids [B, T] -> logits [B, T, vocab] and features [B, T, 3 * hidden].

        A *cache* is read and extended; unless it is empty T must be 1.
        """
        start = cache.length if cache else 0
        cos_sin = rotary(torch.arange(start, start + ids.shape[1]), self.size)
        x, features = self.model.embed_tokens(ids), []
        for index, layer in enumerate(self.model.layers):
            if index in self.size.feature_layers:
                features.append(x)
            x = layer(x, cos_sin, cache)
        if cache:
            cache.length += ids.shape[1]
        return self.lm_head(self.model.norm(x)), torch.cat(features, dim=-1)
