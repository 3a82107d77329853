"""The EAGLE-3 draft: one layer over the target's fused features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from train.model import MLP, Attention, ModelSize, RMSNorm, initialise, rotary
from train.target import Target


class MidLayer(nn.Module):
    """The draft's layer: embedding and hidden state, normalised apart, go side by side into attention."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.size = size
        self.input_layernorm = RMSNorm(size.hidden, size.eps)
        self.hidden_norm = RMSNorm(size.hidden, size.eps)
        self.self_attn = Attention(size, 2 * size.hidden)
        self.post_attention_layernorm = RMSNorm(size.hidden, size.eps)
        self.mlp = MLP(size)

    def forward(self, embeds: Tensor, hidden: Tensor, step: int, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """One draft step at every anchor; embeds and hidden are [B, A, hidden].

        *keys* and *values* hold one [B, heads, A, head_dim] entry a former step and gain this step's.
        """
        positions = torch.arange(embeds.shape[1]) + step
        x = torch.cat([self.input_layernorm(embeds), self.hidden_norm(hidden)], dim=-1)
        q, k, v = self.self_attn.qkv(x, rotary(positions, self.size))
        keys.append(k)
        values.append(v)
        hidden = hidden + self.self_attn.merge(chain_attention(q, keys, values))
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


def chain_attention(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attend from each anchor's chain: to step-0 rows up to the anchor, then to the chain's own later rows.

    Every anchor unrolls its own chain, so rows of steps >= 1 are seen only by the anchor that made them.
    """
    q = q * q.shape[-1] ** -0.5
    ahead = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    scores = [(q @ keys[0].transpose(-1, -2)).masked_fill(ahead, float("-inf"))]
    scores += [(q * k).sum(-1, keepdim=True) for k in keys[1:]]
    weights = torch.cat(scores, dim=-1).softmax(dim=-1)
    anchors = q.shape[2]
    out = weights[..., :anchors] @ values[0]
    for i, v in enumerate(values[1:]):
        out = out + weights[..., anchors + i, None] * v
    return out


class Draft(nn.Module):
    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.size = size
        self.fc = nn.Linear(3 * size.hidden, size.hidden, bias=False)
        self.midlayer = MidLayer(size)
        self.norm = RMSNorm(size.hidden, size.eps)
        self.lm_head = nn.Linear(size.hidden, size.vocab, bias=False)
        initialise(self, residual_writes=2)

    @torch.no_grad()
    def start_from(self, target: Target) -> None:
        """Begin as one more layer of *target* over its last captured feature: a shorter way to go than from noise."""
        hidden, size = self.size.hidden, self.size
        layer = target.model.layers[size.feature_layers[-1]]
        self.lm_head.weight.copy_(target.lm_head.weight)
        self.norm.weight.copy_(target.model.norm.weight)
        self.fc.weight.mul_(0.1)[:, 2 * hidden :].add_(torch.eye(hidden))
        for name in ("q_proj", "k_proj", "v_proj"):
            mine, theirs = getattr(self.midlayer.self_attn, name), getattr(layer.self_attn, name)
            mine.weight.mul_(0.3)[:, hidden:].add_(theirs.weight)
        self.midlayer.self_attn.o_proj.load_state_dict(layer.self_attn.o_proj.state_dict())
        self.midlayer.hidden_norm.load_state_dict(layer.input_layernorm.state_dict())
        self.midlayer.post_attention_layernorm.load_state_dict(layer.post_attention_layernorm.state_dict())
        self.midlayer.mlp.load_state_dict(layer.mlp.state_dict())

    def unroll(self, embeds: Tensor, features: Tensor, steps: int) -> list[Tensor]:
        """Run *steps* draft steps from every anchor of a known text (the training-time test).

        embeds [B, T, hidden] and features [B, T, 3 * hidden] belong to the same T tokens. Anchors are positions
        0 .. T - steps - 1. The first step at anchor t reads feature t and token t + 1; step k reads the draft's own
        hidden state and token t + k + 1, at position t + k. Entry k of the result, [B, T - steps, vocab], predicts
        token t + k + 2, that is, it imitates the target's logits at t + k + 1.
        """
        anchors = embeds.shape[1] - steps
        hidden = self.fc(features[:, :anchors])
        keys: list[Tensor] = []
        values: list[Tensor] = []
        logits = []
        for step in range(steps):
            hidden = self.midlayer(embeds[:, step + 1 : step + 1 + anchors], hidden, step, keys, values)
            logits.append(self.lm_head(self.norm(hidden)))
        return logits
