"""What ``--host cpu`` runs on the CPU engine, with this benchmark's weights: a tiny Llama with five kinds of drafts.

The engine has no sliding window, so Gemma 4's assistant drafts for a Llama here; it reads the keys and values of the
target's last layer, whatever the target is. For multi-layer EAGLE each layer is a copy of the EAGLE-3 draft.
"""

from __future__ import annotations

from benchmarks.architectures import shapes
from benchmarks.architectures.families import Family

TINY: shapes.Shape = {
    **shapes.LLAMA,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "torch_dtype": "float32",
}
DRAFT: shapes.Shape = {
    **TINY,
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": 256,
}
_TYPED: shapes.Shape = {**TINY, "layer_types": ["full_attention"] * 5}
"""A target whose configuration names the kinds of its layers, by which an assistant finds the one that it reads."""

_ASSISTANT: shapes.Shape = {
    **shapes.GEMMA_4_ASSISTANT,
    "torch_dtype": "float32",
    "backbone_hidden_size": 128,
    "text_config": {
        **shapes.GEMMA_4_ASSISTANT["text_config"],
        "torch_dtype": "float32",
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_kv_shared_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": 2,
        "head_dim": 32,
        "global_head_dim": 32,
        "layer_types": ["full_attention"] * 2,
    },
}
_ARGUMENTS = ("--load-format", "dummy", "--skip-tokenizer-init")

_MANY = (*_ARGUMENTS, "--enable-multi-layer-eagle")
_DEPTHS = (0, 1, 2, 3)
_LAYER = {**DRAFT, "draft_vocab_size": 512}

REHEARSAL = (
    Family("rehearsal", "none", "EAGLE3", "EAGLE-3", TINY, DRAFT, arguments=_ARGUMENTS, depths=_DEPTHS),
    Family(
        "rehearsal-frozen-kv",
        "none",
        *("EAGLE", "Frozen-KV MTP", _TYPED, _ASSISTANT),
        # SGLang turns overlap off on a CPU for EAGLE alone.
        arguments=(*_ARGUMENTS, "--disable-overlap-schedule"),
        depths=_DEPTHS,
    ),
    Family(
        "rehearsal-layers",
        "none",
        *("EAGLE3", "multi-layer", TINY, _LAYER),
        arguments=_MANY,
        depths=_DEPTHS,
    ),
    Family(
        "rehearsal-standalone",
        "none",
        *("STANDALONE", "its first layers", TINY, {**TINY, "num_hidden_layers": 3}),
        arguments=_ARGUMENTS,
        depths=_DEPTHS,
    ),
    Family(
        "rehearsal-ngram",
        "none",
        *("NGRAM", "earlier text", TINY),
        arguments=_ARGUMENTS,
        launch=(),
        depths=(0, 3, 7),
        static=("--speculative-num-draft-tokens", "8"),
    ),
)
