"""Checkpoints in the layout of Hugging Face and SGLang, and the byte tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import nn

from train.block_draft import BLOCK, LAYERS, MASK, BlockDraft
from train.draft import Draft
from train.model import ModelSize
from train.target import Target

Model = TypeVar("Model", bound=nn.Module)
WEIGHTS = "model.safetensors"
# Ids 0 .. 255 are the byte values. Our texts have no end, so the models never generate a special token on their own.
SPECIAL = {"<|begin|>": 256, "<|end|>": 257, "<|pad|>": 258, "<|unused|>": 259}


def save(folder: Path, model: Target | Draft | BlockDraft) -> None:
    """Write config, weights and tokenizer files below *folder*.

    The weights are rounded to bfloat16: half the bytes of float32, in which the config says to compute.
    """
    folder.mkdir(parents=True, exist_ok=True)
    configs = {Target: target_config, Draft: draft_config, BlockDraft: block_draft_config}
    shape = configs[type(model)](model.size)
    weights = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)
    write_json(folder / "config.json", shape)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", tokenizer_config(model.size))


def load_target(folder: Path) -> Target:
    """Read a target that `save` wrote."""
    return _filled(Target(_size_of(folder)), folder)


def load_draft(folder: Path) -> Draft:
    """Read a draft that `save` wrote."""
    return _filled(Draft(_size_of(folder)), folder)


def load_block_draft(folder: Path) -> BlockDraft:
    """Read a draft of blocks that `save` wrote."""
    return _filled(BlockDraft(_size_of(folder)), folder)


def target_config(size: ModelSize) -> dict[str, Any]:
    """A LlamaForCausalLM config."""
    return _shared_config(size) | {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": size.layers}


def draft_config(size: ModelSize) -> dict[str, Any]:
    """A config for SGLang's LlamaForCausalLMEagle3; embedding shared with the target, vocabulary not reduced."""
    eagle = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": size.vocab,
        # Named by the layer whose OUTPUT is read, so one less than the layer whose input it is.
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in size.feature_layers]},
    }
    return _shared_config(size) | eagle


def block_draft_config(size: ModelSize) -> dict[str, Any]:
    """A config for SGLang's DFlashDraftModel; embedding and head are the target's."""
    blocks = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",  # the type in transformers that normalizes queries and keys
        "num_hidden_layers": LAYERS,
        "num_target_layers": size.layers,
        "block_size": BLOCK,
        # As for EAGLE-3.
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [layer - 1 for layer in size.feature_layers]},
    }
    return _shared_config(size) | blocks


def byte_tokenizer() -> Tokenizer:
    """One token per byte: byte-level BPE without merges, whose ids are the byte values."""
    alphabet = {character: byte for byte, character in _byte_characters().items()}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return tokenizer


def tokenizer_config(size: ModelSize) -> dict[str, Any]:
    """What AutoTokenizer reads besides tokenizer.json; the chat template only joins the messages' texts."""
    begin, end, pad, _ = SPECIAL
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": begin,
        "eos_token": end,
        "pad_token": pad,
        "model_max_length": size.positions,
        "clean_up_tokenization_spaces": False,
        "chat_template": "{% for message in messages %}{{ message['content'] }}\n{% endfor %}",
    }


def _shared_config(size: ModelSize) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": size.hidden,
        "intermediate_size": size.ffn,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "vocab_size": size.vocab,
        "max_position_embeddings": size.positions,
        "rms_norm_eps": size.eps,
        "rope_theta": size.rope_theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": SPECIAL["<|begin|>"],
        "eos_token_id": SPECIAL["<|end|>"],
        "pad_token_id": SPECIAL["<|pad|>"],
    }


def _byte_characters() -> dict[int, str]:
    """The printable character that byte-level tokenizers use for each byte (GPT-2's table)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in plain}
    others = (byte for byte in range(256) if byte not in table)
    return table | {byte: chr(256 + index) for index, byte in enumerate(others)}


def _size_of(folder: Path) -> ModelSize:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    is_draft = "draft_vocab_size" in config or "dflash_config" in config
    layers = ModelSize.layers if is_draft else config["num_hidden_layers"]
    return ModelSize(
        vocab=config["vocab_size"],
        hidden=config["hidden_size"],
        layers=layers,
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        ffn=config["intermediate_size"],
        positions=config["max_position_embeddings"],
    )


def _filled(model: Model, folder: Path) -> Model:
    model.load_state_dict(load_file(folder / WEIGHTS))
    return model.eval().requires_grad_(False)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write *content* for people to read."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
