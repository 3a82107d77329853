"""An EAGLE-3 draft: the greedy chains from all positions of a text at once.

The first step of all chains is one pass over the text, on the target's true features. Later steps continue from the
draft's own hidden state and token; they attend to the true rows up to their chain's start, and to their own chain.
Weights are named as in SGLang's ``LlamaForCausalLMEagle3``.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from benchmarks.traces.llama import Layer, rotate, split_heads, swiglu
from benchmarks.traces.weights import ModelError, Weights, config_of, rotary

REFUSED = ("norm_before_fc", "fc_norm", "use_aux_norm", "norm_output")
"""Options of newer drafts that change the computation."""


class Eagle3:
    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        config = config_of(folder)
        eagle = getattr(config, "eagle_config", None) or {}
        for option in REFUSED:
            if eagle.get(option) or getattr(config, option, None):
                raise ModelError(f"{folder}/config.json: {option} is not supported; expected a draft without it")
        if config.num_hidden_layers != 1:
            raise ModelError(f"{folder}/config.json: num_hidden_layers {config.num_hidden_layers}; expected 1")
        weights = Weights(folder, device, dtype)
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        self.aux_layers: list[int] | None = eagle.get("eagle_aux_hidden_state_layer_ids")
        layer = "midlayer" if "midlayer.input_layernorm.weight" in weights else "layers.0"
        self.fc = weights.take("fc")
        self.hidden_norm = weights.take(f"{layer}.hidden_norm")
        self.layer = Layer.of(weights, layer)
        self.norm = weights.take("norm")
        self.head = weights.take("lm_head")
        own = torch.arange(len(self.head), device=device)
        self.target_ids = own + weights.take("d2t") if "d2t" in weights else own
        weights.finish(ignored=("t2d", "embed_tokens.weight", "rotary_emb.inv_freq"))  # SGLang drops these, too
        self.cos, self.sin = rotary(config, config.max_position_embeddings, device, dtype)

    @torch.inference_mode()
    def chains(self, embedding: Tensor, ids: Tensor, features: Tensor, first: int, steps: int) -> Tensor:
        """Return the tokens that the chains propose, [A, steps].

        ids [T] is a text and features [>= T - 1, ..] the target's along it. The chain of row r reads the features up to
        r, knows token r + 1 and proposes tokens r + 2 onwards; there is one for each of the A rows *first* to T - 2.
        """
        rows = len(ids) - 1
        x = self._input(embedding[ids[1:]], features[:rows] @ self.fc.T)
        _, keys, values = self._qkv(x, torch.arange(rows, device=ids.device))
        starts = torch.arange(first, rows, device=ids.device)
        hidden, known = self.times(features[first:rows], self.fc), ids[first + 1 :]
        later = torch.arange(rows, device=ids.device) > starts[:, None]
        own: list[tuple[Tensor, Tensor]] = []
        tokens = []
        for step in range(steps):
            q, k, v = self._qkv(self._input(embedding[known], hidden), starts + step)
            if step:  # the first step's own row is a true row
                own.append((k, v))
            hidden = hidden + self.times(self._attend(q, keys, values, own, later), self.layer.o)
            inner = swiglu(self.times(self._normed(hidden, self.layer.post_norm), self.layer.gate_up))
            hidden = hidden + self.times(inner, self.layer.down)
            known = self.target_ids[self.times(self._normed(hidden, self.norm), self.head).argmax(dim=-1)]
            tokens.append(known)
        return torch.stack(tokens, dim=-1)

    def times(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Apply a matrix of this draft; a subclass may inspect the inputs."""
        return x @ matrix.T

    def _input(self, embeds: Tensor, hidden: Tensor) -> Tensor:
        """Embedding and hidden state concatenated, each normalized on its own."""
        return torch.cat([self._normed(embeds, self.layer.input_norm), self._normed(hidden, self.hidden_norm)], dim=-1)

    def _qkv(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [kv heads, group, A, head_dim]; k and v [kv heads, A, head_dim]."""
        q, k, v = split_heads(self.times(x, self.layer.qkv), self.heads, self.kv_heads)
        cos, sin = self.cos[positions], self.sin[positions]
        return rotate(q, cos, sin).unflatten(0, (self.kv_heads, -1)), rotate(k, cos, sin), v

    def _attend(
        self, q: Tensor, keys: Tensor, values: Tensor, own: list[tuple[Tensor, Tensor]], later: Tensor
    ) -> Tensor:
        """Attend to the true rows that are not *later* [A, rows], and to the chains' *own*; [A, heads * head_dim]."""
        q = q * self.head_dim**-0.5
        scores = [(q @ keys[:, None].transpose(-1, -2)).masked_fill(later, float("-inf"))]
        scores += [(q * k[:, None]).sum(-1, keepdim=True) for k, _ in own]
        weights = torch.cat(scores, dim=-1).softmax(dim=-1)
        rows = keys.shape[1]
        out = weights[..., :rows] @ values[:, None]
        for i, (_, v) in enumerate(own):
            out = out + weights[..., rows + i, None] * v[:, None]
        return out.flatten(0, 1).transpose(0, 1).flatten(1)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(x, weight.shape, weight, self.eps)
