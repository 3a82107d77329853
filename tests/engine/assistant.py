"""A random assistant like Gemma 4's for the shipped target: a Frozen-KV draft.

It reads the keys and values of the target's last layer, and the target's embedding. The head's rows of a few common
letters are larger than the others, so that some drafts are right.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from sglang_adaptive.lab.cpu_engine import models

HIDDEN, INNER, LAYERS = 64, 96, 2
LIKELY = b" eta"
KIND = "full_attention"


def write(folder: Path) -> tuple[str, str]:
    """Write the pair below *folder*; return the paths of target and assistant."""
    target, assistant = folder / "typed-target", folder / "assistant"
    shutil.copytree(models.target_path(), target)
    shape = json.loads((target / "config.json").read_text())
    # An assistant finds the target's layer to read by these types.
    shape["layer_types"] = [KIND] * shape["num_hidden_layers"]
    (target / "config.json").write_text(json.dumps(shape))
    assistant.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(target / name, assistant)
    (assistant / "config.json").write_text(json.dumps(_configuration(shape)))
    save_file(dict(_weights(shape)), assistant / "model.safetensors", metadata={"format": "pt"})
    return str(target), str(assistant)


def _configuration(target: dict[str, object]) -> dict[str, object]:
    shared = ("vocab_size", "head_dim", "num_attention_heads", "num_key_value_heads", "max_position_embeddings")
    text = {
        **{name: target[name] for name in shared},
        "model_type": "gemma4_text",
        "torch_dtype": "float32",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_kv_shared_layers": LAYERS,
        "layer_types": [KIND] * LAYERS,
        "global_head_dim": target["head_dim"],
        "num_global_key_value_heads": target["num_key_value_heads"],
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "enable_moe_block": False,
        "tie_word_embeddings": True,
        **{name: target[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
    }
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "torch_dtype": "float32",
        "backbone_hidden_size": target["hidden_size"],
        "tie_word_embeddings": True,
        "text_config": text,
    }


def _weights(target: dict[str, int]) -> Iterator[tuple[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(20)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=draw) / columns**0.5

    backbone, heads = target["hidden_size"], target["num_attention_heads"] * target["head_dim"]
    head = matrix(target["vocab_size"], HIDDEN)
    head[list(LIKELY)] *= 4
    yield "model.embed_tokens.weight", head
    yield "model.norm.weight", torch.ones(HIDDEN)
    yield "pre_projection.weight", matrix(HIDDEN, 2 * backbone)
    yield "post_projection.weight", matrix(backbone, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in ("q", "k", "v"):
            yield f"{at}self_attn.{name}_proj.weight", matrix(heads, HIDDEN)
        yield f"{at}self_attn.o_proj.weight", matrix(HIDDEN, heads)
        yield f"{at}mlp.gate_proj.weight", matrix(INNER, HIDDEN)
        yield f"{at}mlp.up_proj.weight", matrix(INNER, HIDDEN)
        yield f"{at}mlp.down_proj.weight", matrix(HIDDEN, INNER)
