"""Shapes of published models with an EAGLE-3 draft each, as config files alone, for ``--load-format dummy``.

    python -m benchmarks.server.shapes FOLDER

writes FOLDER/NAME/config.json and FOLDER/NAME-eagle3/config.json for every pair. A round of a dense model takes as
long with dummy weights as with real ones; dummy weights send the tokens of a mixture of experts to experts of their
own choice, so its times are those of that routing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Shape = dict[str, Any]

_COMMON: Shape = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "head_dim": 128,
}
_LLAMA: Shape = {
    **_COMMON,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "num_key_value_heads": 8,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
_QWEN3: Shape = {
    **_COMMON,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}

TARGETS: dict[str, Shape] = {
    "llama1b": {
        **_LLAMA,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "llama8b": {
        **_LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "llama70b": {
        **_LLAMA,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
    "qwen3-32b": {
        **_QWEN3,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    },
    "qwen3-30b-a3b": {
        **_QWEN3,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "router_aux_loss_coef": 0.001,
        "output_router_logits": False,
    },
}
"""By name, what the publishers' config files say of the shape."""

DRAFT_VOCABULARY = 32000
_OF_TARGET = (
    *("hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta"),
    *("bos_token_id", "eos_token_id", *_COMMON),
)


def draft_of(target: Shape) -> Shape:
    """Return an EAGLE-3 draft: one Llama layer as wide as *target*, and a vocabulary of 32,000."""
    return {
        **{name: target[name] for name in _OF_TARGET},
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "intermediate_size": max(target["intermediate_size"], 2 * target["hidden_size"]),
        "num_hidden_layers": 1,
        "num_key_value_heads": target["num_key_value_heads"],
        "draft_vocab_size": DRAFT_VOCABULARY,
        "pad_token_id": 0,
    }


def write(folder: Path) -> None:
    """Write every pair below *folder*."""
    for name, target in TARGETS.items():
        for which, shape in ((name, target), (f"{name}-eagle3", draft_of(target))):
            (folder / which).mkdir(parents=True, exist_ok=True)
            (folder / which / "config.json").write_text(json.dumps(shape, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m benchmarks.server.shapes FOLDER")
    write(Path(sys.argv[1]))
