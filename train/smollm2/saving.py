"""The draft's weights: their initial values, and the folder that SGLang loads."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.traces.llama import Llama
from benchmarks.traces.weights import config_of
from sglang_adaptive.lab.models.folders import WEIGHTS, read_draft
from train.smollm2.model import Draft


def new_draft(target: Llama, vocabulary: Tensor, start: Path | None) -> Draft:
    """Return a float32 draft that proposes the tokens *vocabulary* [V]; it starts from another draft or the target.

    Raises ValueError when the weights in *start* have other shapes.
    """
    draft = Draft(target, len(vocabulary)).to(target.embedding.device)
    _from_target(draft, target, vocabulary)
    if start is not None:
        _from_draft(draft, start, vocabulary)
    return draft


@torch.no_grad()
def _from_target(draft: Draft, target: Llama, vocabulary: Tensor) -> None:
    """Start as the target's layer after the last features, with the target's head.

    The columns that read the embedding and the earlier features start small.
    """
    layer, hidden = target.layers[target.captured[-1]], target.embedding.shape[1]
    own, attention = draft.midlayer, draft.midlayer.self_attn
    draft.fc.weight.normal_(std=0.1 * draft.fc.in_features**-0.5)
    draft.fc.weight[:, -hidden:] += torch.eye(hidden, device=draft.fc.weight.device)
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    for linear, rows in zip(projections, layer.qkv.split([one.out_features for one in projections]), strict=True):
        linear.weight.normal_(std=0.3 * linear.in_features**-0.5)
        linear.weight[:, hidden:] += rows
    attention.o_proj.weight.copy_(layer.o)
    gate, up = layer.gate_up.chunk(2)
    own.mlp.gate_proj.weight.copy_(gate)
    own.mlp.up_proj.weight.copy_(up)
    own.mlp.down_proj.weight.copy_(layer.down)
    own.hidden_norm.weight.copy_(layer.input_norm)
    own.post_attention_layernorm.weight.copy_(layer.post_norm)
    draft.norm.weight.copy_(target.norm)
    draft.lm_head.weight.copy_(target.head[vocabulary])


@torch.no_grad()
def _from_draft(draft: Draft, start: Path, vocabulary: Tensor) -> None:
    """Copy a draft's layer, and its head's rows for the tokens that both propose."""
    weights = {name: tensor.to(vocabulary.device) for name, tensor in read_draft(start).items()}
    mine = draft.state_dict()
    for name, tensor in mine.items():
        if name not in weights or (name != "lm_head.weight" and weights[name].shape != tensor.shape):
            raise ValueError(f"{start}: {name} is missing or has another shape; expected a draft of the same target")
        if name != "lm_head.weight":
            tensor.copy_(weights[name])
    head = weights["lm_head.weight"]
    theirs = torch.arange(len(head), device=head.device)
    theirs = theirs + weights["d2t"] if "d2t" in weights else theirs
    places = torch.full((int(max(theirs.max(), vocabulary.max())) + 1,), -1, device=head.device)
    places[theirs] = torch.arange(len(head), device=head.device)
    common = places[vocabulary] >= 0
    mine["lm_head.weight"][common] = head[places[vocabulary][common]].float()


def save_draft(folder: Path, draft: Draft, target: Path, aux_layers: list[int], vocabulary: Tensor) -> None:
    """Write *folder* in SGLang's format: config.json, and bfloat16 weights with `d2t` as offsets."""
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(target)
    tokens = vocabulary.cpu()
    tensors = {name: tensor.detach().to("cpu", torch.bfloat16) for name, tensor in draft.state_dict().items()}
    tensors["d2t"] = tokens - torch.arange(len(tokens))
    tensors["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill(0, tokens, True)
    partial = folder / (WEIGHTS + ".part")
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.chmod(0o644)
    os.replace(partial, folder / WEIGHTS)
    kept = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    more = ("rms_norm_eps", "max_position_embeddings", "hidden_act", "bos_token_id", "eos_token_id")
    shape = {key: getattr(config, key) for key in (*kept, *more)}
    whole = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1, **shape}
    whole |= {"draft_vocab_size": len(tokens), "rope_theta": _theta(target), "tie_word_embeddings": False}
    whole |= {"torch_dtype": "bfloat16", "attention_bias": False, "mlp_bias": False}
    whole["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": aux_layers}
    (folder / "config.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def _theta(target: Path) -> float:
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    return float(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
