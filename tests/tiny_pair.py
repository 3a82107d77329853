"""An untrained Llama target and EAGLE-3 draft, written as checkpoints that SGLang loads."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB = 259  # 256 byte values, then <pad>, <s>, </s>


def make_pair(
    folder: Path,
    layers: int = 8,
    hidden: int = 128,
    heads: int = 4,
    kv_heads: int = 2,
    seed: int = 0,
    context: int = 4096,
    dtype: torch.dtype = torch.float32,
) -> tuple[Path, Path]:
    """Write `folder`/target and `folder`/draft; returns both paths. Same arguments, same weights."""
    torch.manual_seed(seed)
    shape = {
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "vocab_size": VOCAB,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "model_type": "llama",
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "bos_token_id": 257,
        "eos_token_id": 258,
        "pad_token_id": 256,
    }
    target, draft = folder / "target", folder / "draft"
    config = shape | {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": layers}
    _write(target, config, _target_weights(layers, hidden, heads, kv_heads), dtype)
    config = shape | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": VOCAB,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, layers // 2 - 1, layers - 4]},
    }
    _write(draft, config, _draft_weights(hidden, heads, kv_heads), dtype)
    _write_tokenizer(target)
    _write_tokenizer(draft)
    return target, draft


def _matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
    return torch.randn(rows, columns) * gain / columns**0.5


def _layer(prefix: str, hidden: int, heads: int, kv_heads: int, qkv_in: int) -> dict[str, torch.Tensor]:
    dim = hidden // heads
    return {
        f"{prefix}.self_attn.q_proj.weight": _matrix(heads * dim, qkv_in, 2.0),
        f"{prefix}.self_attn.k_proj.weight": _matrix(kv_heads * dim, qkv_in, 2.0),
        f"{prefix}.self_attn.v_proj.weight": _matrix(kv_heads * dim, qkv_in),
        f"{prefix}.self_attn.o_proj.weight": _matrix(hidden, heads * dim),
        f"{prefix}.mlp.gate_proj.weight": _matrix(3 * hidden, hidden),
        f"{prefix}.mlp.up_proj.weight": _matrix(3 * hidden, hidden),
        f"{prefix}.mlp.down_proj.weight": _matrix(hidden, 3 * hidden),
        f"{prefix}.input_layernorm.weight": torch.ones(hidden),
        f"{prefix}.post_attention_layernorm.weight": torch.ones(hidden),
    }


def _target_weights(layers: int, hidden: int, heads: int, kv_heads: int) -> dict[str, torch.Tensor]:
    weights = {
        "model.embed_tokens.weight": torch.randn(VOCAB, hidden),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": _matrix(VOCAB, hidden, 4.0),
    }
    for index in range(layers):
        weights |= _layer(f"model.layers.{index}", hidden, heads, kv_heads, hidden)
    return weights


def _draft_weights(hidden: int, heads: int, kv_heads: int) -> dict[str, torch.Tensor]:
    weights = _layer("midlayer", hidden, heads, kv_heads, 2 * hidden)
    return weights | {
        "midlayer.hidden_norm.weight": torch.ones(hidden),
        "fc.weight": _matrix(hidden, 3 * hidden),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": _matrix(VOCAB, hidden, 4.0),
        "d2t": torch.zeros(VOCAB, dtype=torch.int64),
        "t2d": torch.ones(VOCAB, dtype=torch.bool),
    }


def _write(folder: Path, config: dict[str, object], weights: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    cast = {name: w.to(dtype) if w.is_floating_point() else w for name, w in weights.items()}
    save_file(cast, folder / "model.safetensors", metadata={"format": "pt"})


def _write_tokenizer(folder: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, "<pad>", "<s>", "</s>"]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "model_max_length": 4096,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
