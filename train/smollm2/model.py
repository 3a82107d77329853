"""The trained draft: EAGLE-3's one layer, with SGLang's names, over packed rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.traces.llama import Llama, rotate, split_heads, swiglu
from train.smollm2.lesson import Lesson


class RMSNorm(nn.Module):
    """In float32 for any input; with plain autocast the dtype would depend on the PyTorch version."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


class Attention(nn.Module):
    """Projections of a layer that reads two concatenated vectors of the model's width."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(2 * hidden, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(2 * hidden, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(2 * hidden, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, hidden, bias=False)
        self.heads, self.kv_heads = heads, kv_heads

    def qkv(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From x [B, A, 2 hidden] to q [B, heads, A, head_dim], k and v [B, kv heads, A, head_dim]."""
        weight = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        q, k, v = split_heads(F.linear(x, weight), self.heads, self.kv_heads)
        return rotate(q, cos, sin), rotate(k, cos, sin), v


class MLP(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(swiglu(F.linear(x, torch.cat([self.gate_proj.weight, self.up_proj.weight]))))


class MidLayer(nn.Module):
    def __init__(self, target: Llama) -> None:
        super().__init__()
        hidden = target.embedding.shape[1]
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            RMSNorm(hidden, target.eps) for _ in range(3)
        )
        self.self_attn = Attention(hidden, target.heads, target.kv_heads, target.head_dim)
        self.mlp = MLP(hidden, target.layers[0].down.shape[1])

    def qkv(self, embeds: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.cat([self.input_layernorm(embeds), self.hidden_norm(hidden)], dim=-1)
        return self.self_attn.qkv(x, cos[:, None], sin[:, None])

    def rest(self, hidden: Tensor, heads: Tensor) -> Tensor:
        """Return the layer's output from its input and the attention's *heads* [B, heads, A, head_dim]."""
        hidden = hidden + self.self_attn.o_proj(heads.transpose(1, 2).flatten(2))
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Draft(nn.Module):
    """The draft for *target*; `lm_head` has a row for each token of its own vocabulary."""

    def __init__(self, target: Llama, vocabulary: int) -> None:
        super().__init__()
        hidden = target.embedding.shape[1]
        self.fc = nn.Linear(len(target.captured) * hidden, hidden, bias=False)
        self.midlayer = MidLayer(target)
        self.norm = RMSNorm(hidden, target.eps)
        self.lm_head = nn.Linear(hidden, vocabulary, bias=False)

    def unroll(self, target: Llama, lesson: Lesson, features: Tensor, steps: int) -> Iterator[Tensor]:
        """Yield the input of the head at each of *steps* draft steps (training-time test): [B, T or A, hidden].

        The chain of position r reads the features at r and token r + 1; its step k continues from its own hidden state
        with the text's token r + k + 1, at position r + k. Steps after the first cover only `lesson.anchors`. They
        attend to the first step's rows up to their anchor, and to their own chain.
        """
        embeds, anchors, width = target.embedding[lesson.ids], lesson.anchors, lesson.ids.shape[1]
        hidden = self.fc(features)
        cos, sin = target.cos[lesson.position], target.sin[lesson.position]
        q, keys, values = self.midlayer.qkv(embeds.roll(-1, dims=1), hidden, cos, sin)
        group = q.shape[1] // keys.shape[1]
        every = (part.repeat_interleave(group, dim=1) for part in (keys, values))
        hidden = self.midlayer.rest(hidden, F.scaled_dot_product_attention(q, *every, attn_mask=lesson.sees))
        yield self.norm(hidden)
        hidden, position = picked(hidden, anchors), lesson.position.gather(1, anchors)
        rows = torch.arange(len(anchors), device=anchors.device)[:, None]
        hides = ~lesson.sees[rows, 0, anchors][:, None, None]  # [B, 1, 1, A, T]
        own: list[tuple[Tensor, Tensor]] = []
        for step in range(1, steps):
            known = picked(embeds, (anchors + step + 1).clamp(max=width - 1))
            q, k, v = self.midlayer.qkv(known, hidden, target.cos[position + step], target.sin[position + step])
            own.append((k, v))
            hidden = self.midlayer.rest(hidden, attend(q, keys, values, own, hides))
            yield self.norm(hidden)


def attend(q: Tensor, keys: Tensor, values: Tensor, own: list[tuple[Tensor, Tensor]], hides: Tensor) -> Tensor:
    """Attend from q [B, heads, A, d] to the rows [B, kv heads, T, d] not in *hides*, and to the chains' *own*."""
    grouped = q.unflatten(1, (keys.shape[1], -1)) * q.shape[-1] ** -0.5  # [B, kv heads, group, A, d]
    flat = grouped.flatten(2, 3)  # heads that share keys become rows of one query, so keys are not copied
    scores = [(flat @ keys.transpose(-1, -2)).view(*grouped.shape[:-1], -1).masked_fill(hides, float("-inf"))]
    scores += [(grouped * k[:, :, None]).sum(-1, keepdim=True).to(scores[0].dtype) for k, _ in own]
    weights = torch.cat(scores, dim=-1).softmax(dim=-1).to(values.dtype)
    rows, *others = weights.split([keys.shape[2]] + [1] * len(own), dim=-1)
    out = (rows.flatten(2, 3) @ values).view(grouped.shape)
    for weight, (_, v) in zip(others, own, strict=True):
        out = out + weight * v[:, :, None]
    return out.flatten(1, 2)


def picked(values: Tensor, indices: Tensor) -> Tensor:
    """Return values [B, T, hidden] at indices [B, A]."""
    return values.gather(1, indices[:, :, None].expand(-1, -1, values.shape[-1]))
