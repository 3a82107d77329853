"""What ``--host cpu`` runs, on the CPU engine with this benchmark's weights: a tiny Llama with its EAGLE-3 draft.

Once with the draft as it is, and once with a copy of it for each draft token, as in multi-layer EAGLE.
"""

from __future__ import annotations

from benchmarks.architectures import shapes
from benchmarks.architectures.families import Family

_TINY: shapes.Shape = {
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
_DRAFT: shapes.Shape = {
    **_TINY,
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": 256,
}
_ARGUMENTS = ("--load-format", "dummy", "--skip-tokenizer-init")

_MANY = (*_ARGUMENTS, "--enable-multi-layer-eagle")
_DEPTHS = (0, 1, 2, 3)
_LAYER = {**_DRAFT, "draft_vocab_size": 512}

REHEARSAL = (
    Family("rehearsal", "none", "EAGLE3", "EAGLE-3", _TINY, _DRAFT, arguments=_ARGUMENTS, depths=_DEPTHS),
    Family("rehearsal-layers", "none", "EAGLE3", "multi-layer", _TINY, _LAYER, arguments=_MANY, depths=_DEPTHS),
)
