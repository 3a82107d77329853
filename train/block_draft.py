"""The DFLASH draft: a block of drafts in one pass, with keys and values from the target's features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train.model import MLP, Attention, ModelSize, RMSNorm, initialise, rotary, rotate
from train.target import Target

LAYERS = 2
BLOCK = 16
MASK = 259
"""The token, otherwise unused, that represents each draft of a block."""

Rotation = tuple[Tensor, Tensor]


class BlockAttention(Attention):
    """The target's attention with normalized queries and keys."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__(size, size.hidden)
        self.q_norm = RMSNorm(size.head_dim, size.eps)
        self.k_norm = RMSNorm(size.head_dim, size.eps)

    def queries(self, x: Tensor, cos_sin: Rotation) -> Tensor:
        """Rotated queries of x [B, T, hidden], [B, heads, T, head_dim]."""
        return rotate(self.q_norm(self._split(self.q_proj(x))), cos_sin)

    def keys_values(self, x: Tensor, cos_sin: Rotation) -> tuple[Tensor, Tensor]:
        """Rotated keys and plain values of x [B, T, hidden], each [B, heads, T, head_dim]."""
        return rotate(self.k_norm(self._split(self.k_proj(x))), cos_sin), self._split(self.v_proj(x))

    def _split(self, y: Tensor) -> Tensor:
        return y.unflatten(-1, (-1, self.size.head_dim)).transpose(1, 2)


class BlockLayer(nn.Module):
    """A layer of the draft: blocks attend to the context before them and to all of themselves."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(size.hidden, size.eps)
        self.self_attn = BlockAttention(size)
        self.post_attention_layernorm = RMSNorm(size.hidden, size.eps)
        self.mlp = MLP(size)

    def forward(self, x: Tensor, inside: Rotation, context: Tensor, before: Rotation, seen: Tensor) -> Tensor:
        """x [B, N, hidden] and context [B, T, hidden], each with its rotation; *seen* [N, T + N] is the mask."""
        attention, normed = self.self_attn, self.input_layernorm(x)
        k, v = attention.keys_values(normed, inside)
        context_k, context_v = attention.keys_values(context, before)
        k, v = torch.cat([context_k, k], dim=2), torch.cat([context_v, v], dim=2)
        heads = F.scaled_dot_product_attention(attention.queries(normed, inside), k, v, attn_mask=seen)
        x = x + attention.merge(heads)
        return x + self.mlp(self.post_attention_layernorm(x))


class BlockDraft(nn.Module):
    """The draft's layers; its embedding and its head are the target's."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.size = size
        self.fc = nn.Linear(3 * size.hidden, size.hidden, bias=False)
        self.hidden_norm = RMSNorm(size.hidden, size.eps)
        self.layers = nn.ModuleList(BlockLayer(size) for _ in range(LAYERS))
        self.norm = RMSNorm(size.hidden, size.eps)
        initialise(self, residual_writes=2 * LAYERS)

    @torch.no_grad()
    def start_from(self, target: Target) -> None:
        """Start with the weights of the target's last layers, over its last captured feature."""
        hidden = self.size.hidden
        self.fc.weight.mul_(0.1)[:, 2 * hidden :].add_(torch.eye(hidden))
        self.norm.load_state_dict(target.model.norm.state_dict())
        for mine, theirs in zip(self.layers, target.model.layers[-LAYERS:], strict=True):
            mine.load_state_dict(theirs.state_dict(), strict=False)  # all but the norms of queries and keys

    def forward(self, embeds: Tensor, features: Tensor, anchors: Tensor) -> Tensor:
        """Hidden states [B, A, width, hidden] of the blocks that start at the positions *anchors* [A].

        embeds [B, A, width, hidden] are those of the text's token at the anchor and of width - 1 masks. features [B, T,
        3 * hidden] are the target's; a block sees those before its anchor.
        """
        blocks, width, context_length = *embeds.shape[1:3], features.shape[1]
        owner = torch.arange(blocks).repeat_interleave(width)
        earlier = torch.arange(context_length) < anchors[owner, None]
        seen = torch.cat([earlier, owner[:, None] == owner], dim=1)
        inside = rotary(anchors[owner] + torch.arange(width).repeat(blocks), self.size)
        before = rotary(torch.arange(context_length), self.size)
        context = self.hidden_norm(self.fc(features))
        x = embeds.flatten(1, 2)
        for layer in self.layers:
            x = layer(x, inside, context, before, seen)
        return self.norm(x).view_as(embeds)

    def logits(self, target: Target, ids: Tensor, features: Tensor, anchors: Tensor, width: int) -> Tensor:
        """Logits [B, A, width - 1, vocab] of the drafts of blocks in the text ids [B, T]; see `forward`.

        Entry j predicts token anchor + j + 1, that is, it imitates the target's logits at anchor + j.
        """
        tokens = torch.full((len(ids), len(anchors), width), MASK)
        tokens[:, :, 0] = ids[:, anchors]
        hidden = self(target.model.embed_tokens(tokens), features, anchors)
        return target.lm_head(hidden[:, :, 1:])
