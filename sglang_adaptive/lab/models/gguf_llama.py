"""Converts a Llama in a GGUF file to the folder layout that Transformers and SGLang read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_CONTROL = 3
"""GGUF's token type of special tokens."""


class GgufLlama:
    """Reads *path*: a Llama with tied embeddings and a byte-level BPE tokenizer."""

    def __init__(self, path: Path) -> None:
        self._reader = gguf.GGUFReader(path)

    @property
    def tensors(self) -> int:
        """How many tensors `weights` yields."""
        return len(self._reader.tensors)

    def weights(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield (Transformers' name, float32 values) of each tensor; q and k rows are in Transformers' order."""
        for tensor in self._reader.tensors:
            values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
            part, _, rest = tensor.name.partition(".")
            if part == "blk":
                layer, kind, _ = rest.split(".")
                values = self._rows(kind, values)
                yield f"model.layers.{layer}.{_LAYER[kind]}.weight", np.ascontiguousarray(values)
            else:
                yield f"{_OUTSIDE[part]}.weight", np.ascontiguousarray(values)

    def config(self) -> dict[str, Any]:
        """Return Transformers' config.json of the model."""
        heads, hidden = self._llama("attention.head_count"), self._llama("embedding_length")
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": hidden,
            "intermediate_size": self._llama("feed_forward_length"),
            "num_hidden_layers": self._llama("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._llama("attention.head_count_kv"),
            "head_dim": hidden // heads,
            "vocab_size": self._llama("vocab_size"),
            "max_position_embeddings": self._llama("context_length"),
            # Stored as float32: 9.9999997e-06.
            "rms_norm_eps": float(f"{self._llama('attention.layer_norm_rms_epsilon'):.6g}"),
            "rope_theta": self._llama("rope.freq_base"),
            "rope_parameters": {"rope_type": "default", "rope_theta": self._llama("rope.freq_base")},
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": self._token("bos"),
            "eos_token_id": self._token("eos"),
            "pad_token_id": self._token("padding"),
            "dtype": "float32",
        }

    def write_config(self, folder: Path) -> None:
        """Write config.json and generation_config.json, which holds the token that ends an answer."""
        ends = {f"{name}_token_id": self._token(name) for name in ("bos", "eos")}
        for name, content in (("config.json", self.config()), ("generation_config.json", ends)):
            (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def write_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer, chat template included."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        tokens: list[str] = self._field("tokenizer.ggml.tokens")
        merges = [tuple(pair.split(" ")) for pair in self._field("tokenizer.ggml.merges")]
        made = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
        # GGUF calls the pre-tokenizer "smollm": GPT-2's, after splitting off each digit.
        digits = pre_tokenizers.Digits(individual_digits=True)
        made.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        made.decoder = decoders.ByteLevel()
        types = self._field("tokenizer.ggml.token_type")
        special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
        made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
        whole = PreTrainedTokenizerFast(
            tokenizer_object=made,
            model_max_length=self._llama("context_length"),
            clean_up_tokenization_spaces=False,
            **{name: tokens[self._token(key)] for key, name in names.items()},
        )
        whole.chat_template = self._field("tokenizer.chat_template")
        whole.save_pretrained(folder)

    def _rows(self, kind: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Undo llama.cpp's order of q and k rows, which interleaves the two halves of each head."""
        if kind not in ("attn_q", "attn_k"):
            return values
        heads = self._llama("attention.head_count" if kind == "attn_q" else "attention.head_count_kv")
        rows, columns = values.shape
        return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)

    def _llama(self, key: str) -> Any:
        return self._field(f"llama.{key}")

    def _token(self, name: str) -> int:
        return int(self._field(f"tokenizer.ggml.{name}_token_id"))

    def _field(self, key: str) -> Any:
        return self._reader.fields[key].contents()
