"""An untrained Llama target and EAGLE-3 draft, written as checkpoints that SGLang loads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB = 259  # 256 byte values, then <pad>, <s>, </s>


@dataclass(frozen=True)
class _Size:
    hidden: int
    heads: int
    kv_heads: int

    @property
    def query(self) -> int:
        return self.hidden

    @property
    def key(self) -> int:
        return self.hidden // self.heads * self.kv_heads


def make_pair(
    folder: Path,
    layers: int = 8,
    hidden: int = 128,
    heads: int = 4,
    kv_heads: int = 2,
    context_gain: float = 0.3,
    seed: int = 0,
    context: int = 4096,
    dtype: torch.dtype = torch.float32,
) -> tuple[Path, Path]:
    """Write `folder`/target and `folder`/draft; returns both paths. Same arguments, same weights.

    The draft guesses the next token from the last one alone. `context_gain` says how much else moves the target: 0 and
    nearly every draft token is right, 1 and hardly any is.
    """
    torch.manual_seed(seed)
    size = _Size(hidden, heads, kv_heads)
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
    target_weights = _target_weights(size, layers, context_gain)
    _write(target, config, target_weights, dtype)
    config = shape | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": VOCAB,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, layers // 2 - 1, layers - 4]},
    }
    _write(draft, config, _draft_weights(size, target_weights["lm_head.weight"]), dtype)
    _write_tokenizer(target)
    _write_tokenizer(draft)
    return target, draft


def _matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
    return torch.randn(rows, columns) * gain / columns**0.5


def _target_weights(size: _Size, layers: int, context_gain: float) -> dict[str, torch.Tensor]:
    """The output layer maps a token's embedding to one fixed next token; the layers between disturb that."""
    hidden = size.hidden
    embedding = torch.randn(VOCAB, hidden)
    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": embedding[torch.randperm(VOCAB)],
    }
    for index in range(layers):
        name = f"model.layers.{index}"
        weights |= {
            f"{name}.self_attn.q_proj.weight": _matrix(size.query, hidden, 2.0),
            f"{name}.self_attn.k_proj.weight": _matrix(size.key, hidden, 2.0),
            f"{name}.self_attn.v_proj.weight": _matrix(size.key, hidden),
            f"{name}.self_attn.o_proj.weight": _matrix(hidden, size.query, context_gain),
            f"{name}.input_layernorm.weight": torch.ones(hidden),
            f"{name}.post_attention_layernorm.weight": torch.ones(hidden),
        } | _mlp(f"{name}.mlp", hidden, context_gain)
    return weights


def _draft_weights(size: _Size, lm_head: torch.Tensor) -> dict[str, torch.Tensor]:
    """One layer whose attention finds the token itself and copies its embedding to the target's output layer."""
    hidden, dim, group = size.hidden, size.hidden // size.heads, size.heads // size.kv_heads
    nothing = torch.zeros(size.key, hidden)  # the half of the input that holds the target's features
    key = torch.cat((_matrix(size.key, hidden, 3.0), nothing), dim=1)
    value = torch.linalg.qr(torch.randn(hidden, size.key)).Q.T

    def expand(rows: torch.Tensor) -> torch.Tensor:
        """Repeat a KV head's rows for every query head that shares it."""
        return rows.view(size.kv_heads, dim, -1).repeat_interleave(group, dim=0).reshape(size.query, -1)

    weights = {
        "midlayer.self_attn.q_proj.weight": expand(key),
        "midlayer.self_attn.k_proj.weight": key,
        "midlayer.self_attn.v_proj.weight": torch.cat((value, nothing), dim=1),
        "midlayer.self_attn.o_proj.weight": expand(value).T / group,
        "fc.weight": torch.zeros(hidden, 3 * hidden),
        "lm_head.weight": lm_head,
        "d2t": torch.zeros(VOCAB, dtype=torch.int64),
        "t2d": torch.ones(VOCAB, dtype=torch.bool),
    }
    norms = ("midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm", "norm")
    return weights | {f"{n}.weight": torch.ones(hidden) for n in norms} | _mlp("midlayer.mlp", hidden, 0.05)


def _mlp(name: str, hidden: int, gain: float) -> dict[str, torch.Tensor]:
    return {
        f"{name}.gate_proj.weight": _matrix(3 * hidden, hidden),
        f"{name}.up_proj.weight": _matrix(3 * hidden, hidden),
        f"{name}.down_proj.weight": _matrix(hidden, 3 * hidden, gain),
    }


def _write(folder: Path, config: dict[str, object], weights: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    cast = {name: (w.to(dtype) if w.is_floating_point() else w).contiguous() for name, w in weights.items()}
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
