"""The EAGLE-3 draft: one layer over the target's fused features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from train.model import MLP, Attention, ModelSize, RMSNorm, initialise, rotary
from train.target import Target


class MidLayer(nn.Module):
    """The draft's layer: embedding and hidden state are normalized separately and concatenated for attention."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.size = size
        self.input_layernorm = RMSNorm(size.hidden, size.eps)
        self.hidden_norm = RMSNorm(size.hidden, size.eps)
        self.self_attn = Attention(size, 2 * size.hidden)
        self.post_attention_layernorm = RMSNorm(size.hidden, size.eps)
        self.mlp = MLP(size)

    def forward(
        self, embeds: Tensor, hidden: Tensor, anchors: Tensor, keys: list[Tensor], values: list[Tensor]
    ) -> Tensor:
        """One draft step of the chains that start at *anchors* [A]; embeds and hidden are [B, A, hidden].

        *keys* and *values* hold one [B, heads, A, head_dim] entry per earlier step and gain this step's.
        """
        positions = anchors + len(keys)
        x = torch.cat([self.input_layernorm(embeds), self.hidden_norm(hidden)], dim=-1)
        q, k, v = self.self_attn.qkv(x, rotary(positions, self.size))
        keys.append(k)
        values.append(v)
        hidden = hidden + self.self_attn.merge(chain_attention(q, anchors, keys, values))
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


def chain_attention(q: Tensor, anchors: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attend from each chain: to step-0 rows up to its anchor, then to the chain's own later rows.

    Rows of step 0 belong to all positions 0, 1, ..; those of later steps are seen only by their own chain.
    """
    q = q * q.shape[-1] ** -0.5
    rows = keys[0].shape[2]
    ahead = torch.arange(rows) > anchors[:, None]
    scores = [(q @ keys[0].transpose(-1, -2)).masked_fill(ahead, float("-inf"))]
    scores += [(q * k).sum(-1, keepdim=True) for k in keys[1:]]
    weights = torch.cat(scores, dim=-1).softmax(dim=-1)
    # One split: slices would each cost a full-size gradient.
    first, *later = weights.split([rows] + [1] * (len(keys) - 1), dim=-1)
    out = first @ values[0]
    for weight, v in zip(later, values[1:], strict=True):
        out = out + weight * v
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
        """Start as one more layer of *target* over its last captured feature: closer to the goal than noise."""
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

    def unroll(self, embeds: Tensor, features: Tensor, steps: int, chosen: Tensor | None = None) -> list[Tensor]:
        """Run *steps* draft steps along a known text (the training-time test).

        embeds [B, T, hidden] and features [B, T, 3 * hidden] belong to the same T tokens. A chain starts at every
        anchor 0 .. T - steps - 1; steps after the first continue only from the *chosen* anchors, by default all. The
        first step at anchor t reads feature t and token t + 1; step k reads the draft's own hidden state and token t +
        k + 1, at position t + k. Entry k of the result, [B, anchors, vocab], predicts token t + k + 2: it imitates the
        target's logits at t + k + 1.
        """
        anchors = torch.arange(embeds.shape[1] - steps)
        hidden = self.fc(features[:, : len(anchors)])
        keys: list[Tensor] = []
        values: list[Tensor] = []
        logits = []
        for step in range(steps):
            if step == 1 and chosen is not None:
                anchors, hidden = chosen, hidden[:, chosen]
            hidden = self.midlayer(embeds[:, anchors + step + 1], hidden, anchors, keys, values)
            logits.append(self.lm_head(self.norm(hidden)))
        return logits
