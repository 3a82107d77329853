"""A Llama that keeps the hidden states its EAGLE-3 draft reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.traces.weights import Weights, config_of, rotary

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""From a layer's number and its q, k and v to the heads' outputs, all [B, heads, T, head_dim]."""


@dataclass(frozen=True)
class Layer:
    """Weights of a decoder layer; those that read the same input are stacked."""

    input_norm: Tensor
    qkv: Tensor
    o: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def of(cls, weights: Weights, prefix: str) -> Layer:
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return cls(
            weights.take(f"{prefix}.input_layernorm"),
            weights.take(*(f"{attention}.{name}_proj" for name in "qkv")),
            weights.take(f"{attention}.o_proj"),
            weights.take(f"{prefix}.post_attention_layernorm"),
            weights.take(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
            weights.take(f"{mlp}.down_proj"),
        )


class Cache:
    """Keys and values [B, kv heads, S, head_dim] of every layer."""

    def __init__(self, layers: int, shape: tuple[int, int, int, int], like: Tensor) -> None:
        self.keys = [like.new_zeros(shape) for _ in range(layers)]
        self.values = [like.new_zeros(shape) for _ in range(layers)]

    def keep(self, rows: Tensor) -> None:
        """Keep only *rows* of the batch."""
        for layer in range(len(self.keys)):  # one at a time: copying all at once would double the memory
            self.keys[layer] = self.keys[layer][rows]
            self.values[layer] = self.values[layer][rows]


class Llama:
    """The target: a folder in Transformers' layout. *aux_layers* are the layers whose output the draft reads."""

    def __init__(
        self, folder: Path, aux_layers: Sequence[int] | None, device: torch.device, dtype: torch.dtype
    ) -> None:
        config = config_of(folder)
        weights = Weights(folder, device, dtype)
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps, self.positions, self.vocab = config.rms_norm_eps, config.max_position_embeddings, config.vocab_size
        count = config.num_hidden_layers
        # SGLang's default for EAGLE-3, which SGLang counts by the layers' inputs.
        outputs = (1, count // 2 - 1, count - 4) if aux_layers is None else aux_layers
        self.captured = [layer + 1 for layer in outputs]
        self.embedding = weights.take("model.embed_tokens")
        self.layers = [Layer.of(weights, f"model.layers.{i}") for i in range(count)]
        self.norm = weights.take("model.norm")
        self.head = self.embedding if config.tie_word_embeddings else weights.take("lm_head")
        weights.finish(ignored=("rotary_emb.inv_freq", "lm_head.weight" if config.tie_word_embeddings else "inv_freq"))
        self.cos, self.sin = rotary(config, self.positions, device, dtype)
        if device.type == "cuda":
            # It builds a plan for each new shape, and every decode step has a new one.
            torch.backends.cuda.enable_cudnn_sdp(False)

    def cache(self, rows: int, positions: int) -> Cache:
        return Cache(len(self.layers), (rows, self.kv_heads, positions, self.head_dim), self.embedding)

    def prefill(self, ids: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        """Run prompts [B, T], padded at the end, from an empty cache.

        Returns the last layer's output [B, T, hidden] and the features [B, T, features * hidden].
        """
        width = ids.shape[1]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.keys[layer][:, :, :width] = k
            cache.values[layer][:, :, :width] = v
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        return self.run(ids, slice(0, width), attend)

    def decode(self, ids: Tensor, at: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        """Run one token [B, 1] of each row, at the positions *at* [B]; returns the same as `prefill`."""
        rows = torch.arange(len(at), device=at.device)
        upto = int(at.max()) + 1
        seen = (torch.arange(upto, device=at.device) <= at[:, None])[:, None, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.keys[layer][rows, :, at] = k[:, :, 0]
            cache.values[layer][rows, :, at] = v[:, :, 0]
            keys, values = cache.keys[layer][:, :, :upto], cache.values[layer][:, :, :upto]
            grouped = q.view(len(at), self.kv_heads, -1, self.head_dim)  # heads that share keys as rows of one query
            return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=seen).reshape(q.shape)

        return self.run(ids, at[:, None], attend)

    def run(self, ids: Tensor, positions: slice | Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        """Run ids [B, T] at *positions*, a slice or [B, T], with *attend* for attention; returns as `prefill` does."""
        x, features = self.embedding[ids], []
        cos, sin = (table[positions].unsqueeze(-3) for table in (self.cos, self.sin))
        for i, layer in enumerate(self.layers):
            if i in self.captured:
                features.append(x)
            q, k, v = split_heads(self.normed(x, layer.input_norm) @ layer.qkv.T, self.heads, self.kv_heads)
            out = attend(i, rotate(q, cos, sin), rotate(k, cos, sin), v)
            x = x + out.transpose(1, 2).flatten(2) @ layer.o.T
            x = x + swiglu(self.normed(x, layer.post_norm) @ layer.gate_up.T) @ layer.down.T
        if len(self.layers) in self.captured:
            features.append(x)
        return x, torch.cat(features, dim=-1)

    def logits(self, x: Tensor) -> Tensor:
        """[.., vocab] in float32, from the last layer's output [.., hidden]."""
        return (self.normed(x, self.norm) @ self.head.T).float()

    def normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.eps)


def split_heads(qkv: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, ...]:
    """Split [.., T, (heads + 2 kv heads) * head_dim] into q, k and v, each [.., its heads, T, head_dim]."""
    every = qkv.unflatten(-1, (heads + 2 * kv_heads, -1)).transpose(-3, -2)
    return every.split([heads, kv_heads, kv_heads], dim=-3)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions, in the half-split layout of Llama checkpoints, to x [.., T, head_dim]."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


def swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
