"""Shapes of published models as config files without weights, for ``--load-format dummy``.

*Whole* ones (``TARGETS``) are for times: a round of a dense model takes as long with dummy weights as with real ones;
dummy weights send the tokens of a mixture of experts to arbitrary experts, so its times are those of that routing.
Those named *-cut* have fewer layers and experts than the published model, so that three servers fit on an H200.
*Small* ones are for texts: head sizes, ranks, states and expert widths are those of the published models, so that a
family's own kernels run; layers, experts, hidden sizes and vocabularies are smaller, and each pair takes less than 4 GB
in bfloat16. *Tiny* ones are for the CPU engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Shape = dict[str, Any]


def write(folder: Path, shape: Shape) -> Path:
    """Write *shape* as FOLDER/config.json and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape, indent=1) + "\n", encoding="utf-8")
    return folder


def write_pair(folder: Path, name: str, **changes: Any) -> None:
    """Write the whole shape *name*, with *changes*, and its drafts as FOLDER/NAME, NAME-eagle3 and -dflash.

    A shape with a NextN layer is its own draft, and there is only FOLDER/NAME.
    """
    target = {**TARGETS[name], **changes}
    write(folder / name, target)
    if has_nextn(target):
        return
    write(folder / f"{name}-eagle3", draft_of(target))
    write(folder / f"{name}-dflash", block_draft_of(target))


# -- whole ----------------------------------------------------------------------------------------------------------

_WHOLE: Shape = dict(
    hidden_act="silu", attention_bias=False, mlp_bias=False, tie_word_embeddings=False, torch_dtype="bfloat16",
    head_dim=128,
)  # fmt: skip
_WHOLE_LLAMA = dict(
    _WHOLE, architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=128256, max_position_embeddings=131072,
    rms_norm_eps=1e-5, rope_theta=500000.0, num_key_value_heads=8, bos_token_id=128000, eos_token_id=128001,
)  # fmt: skip
_WHOLE_QWEN3 = dict(
    _WHOLE, vocab_size=151936, max_position_embeddings=40960, rms_norm_eps=1e-6, rope_theta=1000000.0,
    bos_token_id=151643, eos_token_id=151645,
)  # fmt: skip
_YARN = dict(
    type="yarn", factor=40, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0,
    original_max_position_embeddings=4096,
)  # fmt: skip
_WHOLE_LATENT: Shape = dict(
    hidden_act="silu", attention_bias=False, tie_word_embeddings=False, torch_dtype="bfloat16", kv_lora_rank=512,
    qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, moe_layer_freq=1, first_k_dense_replace=1,
    topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=True, num_nextn_predict_layers=1,
)  # fmt: skip
_V4: Shape = dict(
    architectures=["DeepseekV4ForCausalLM"], model_type="deepseek_v4", torch_dtype="bfloat16", hidden_act="silu",
    attention_bias=False, tie_word_embeddings=False, hidden_size=4096, moe_intermediate_size=2048,
    num_attention_heads=64, num_key_value_heads=1, head_dim=512, q_lora_rank=1024, o_lora_rank=1024, o_groups=8,
    qk_rope_head_dim=64, sliding_window=128, index_head_dim=128, index_n_heads=64, index_topk=512, hc_mult=4,
    hc_sinkhorn_iters=20, hc_eps=1e-6, num_hash_layers=2, n_shared_experts=1, scoring_func="sqrtsoftplus",
    topk_method="noaux_tc", norm_topk_prob=True, routed_scaling_factor=1.5, swiglu_limit=10.0, rms_norm_eps=1e-6,
    rope_theta=10000.0, compress_rope_theta=160000.0, max_position_embeddings=131072, initializer_range=0.02,
    rope_scaling=dict(type="yarn", factor=16, beta_fast=32, beta_slow=1, original_max_position_embeddings=65536),
    num_nextn_predict_layers=1, bos_token_id=0, eos_token_id=1,
)  # fmt: skip
_V4_FP8 = dict(
    quant_method="fp8", activation_scheme="dynamic", fmt="e4m3", scale_fmt="ue8m0", weight_block_size=[128, 128],
    routed_experts_quant_method="fp8",  # SGLang otherwise looks into the weights, and takes MXFP4 without any
)  # fmt: skip
TARGETS: dict[str, Shape] = {
    "llama1b": dict(
        _WHOLE_LLAMA, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        head_dim=64, tie_word_embeddings=True,
    ),
    "llama3b": dict(
        _WHOLE_LLAMA, hidden_size=3072, intermediate_size=8192, num_hidden_layers=28, num_attention_heads=24,
        tie_word_embeddings=True,
    ),
    "llama8b": dict(
        _WHOLE_LLAMA, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32
    ),
    "llama70b": dict(
        _WHOLE_LLAMA, hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64
    ),
    "qwen3-8b": dict(
        _WHOLE_QWEN3, architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=4096,
        intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8,
    ),
    "qwen3-32b": dict(
        _WHOLE_QWEN3, architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=5120,
        intermediate_size=25600, num_hidden_layers=64, num_attention_heads=64, num_key_value_heads=8,
    ),
    "qwen3-30b-a3b": dict(
        _WHOLE_QWEN3, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_size=2048,
        intermediate_size=6144, num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4, num_experts=128,
        num_experts_per_tok=8, moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[],
        norm_topk_prob=True, router_aux_loss_coef=0.001, output_router_logits=False,
    ),
    # DeepSeek-V3's architecture at 16B, 3B of them active: Moonlight's values, and a NextN layer, which it lacks.
    "moonlight": dict(
        _WHOLE_LATENT, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", vocab_size=163840,
        hidden_size=2048, intermediate_size=11264, num_hidden_layers=27, num_attention_heads=16,
        num_key_value_heads=16, q_lora_rank=None, n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6,
        moe_intermediate_size=1408, n_group=1, topk_group=1, routed_scaling_factor=2.446, rms_norm_eps=1e-5,
        rope_theta=50000.0, max_position_embeddings=8192, bos_token_id=163584, eos_token_id=163585,
    ),
    # 61 layers, the first 3 dense, and 256 experts in the published one.
    "deepseek-v3.2-cut": dict(
        _WHOLE_LATENT, architectures=["DeepseekV32ForCausalLM"], model_type="deepseek_v32", vocab_size=129280,
        hidden_size=7168, intermediate_size=18432, num_hidden_layers=10, num_attention_heads=128,
        num_key_value_heads=128, q_lora_rank=1536, n_routed_experts=32, n_shared_experts=1, num_experts_per_tok=8,
        moe_intermediate_size=2048, n_group=8, topk_group=4, routed_scaling_factor=2.5, rms_norm_eps=1e-6,
        rope_theta=10000.0, max_position_embeddings=163840, rope_scaling=_YARN, bos_token_id=0, eos_token_id=1,
        index_head_dim=128, index_n_heads=64, index_topk=2048,
    ),
    # 43 layers and 256 experts in the published one; FP8, as its lines for an H200.
    "deepseek-v4-flash-cut": dict(
        _V4, vocab_size=129280, num_hidden_layers=20, compress_ratios=[0, 0, *(4, 128) * 9, 0], n_routed_experts=64,
        num_experts_per_tok=6, quantization_config=_V4_FP8,
    ),
}  # fmt: skip
"""The shape's values in the publishers' config files, by name."""


def has_nextn(target: Mapping[str, Any]) -> bool:
    """Return whether the shape has a NextN layer that drafts for it."""
    return bool(target.get("num_nextn_predict_layers"))


DRAFT_VOCABULARY = 32000
_OF_TARGET = (
    *("hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta"),
    *("num_key_value_heads", "bos_token_id", "eos_token_id", *_WHOLE),
)


def draft_of(target: Shape) -> Shape:
    """Return the EAGLE-3 draft of a whole shape: one Llama layer as wide as *target*, and a vocabulary of 32,000."""
    return dict(
        {name: target[name] for name in _OF_TARGET}, architectures=["LlamaForCausalLMEagle3"], model_type="llama",
        intermediate_size=max(target["intermediate_size"], 2 * target["hidden_size"]), num_hidden_layers=1,
        draft_vocab_size=DRAFT_VOCABULARY, pad_token_id=0,
    )  # fmt: skip


BLOCK = 16
"""Tokens per block of the published DFLASH drafts."""


def block_draft_of(target: Shape, drafts: int = 5) -> Shape:
    """Return the DFLASH draft of *target*: *drafts* of its layers over as many of its hidden states, blocks of 16.

    The published ones of dense Qwen3 targets have this form, with five layers.
    """
    layers = target["num_hidden_layers"]
    read = [1 + round(number * (layers - 4) / (drafts - 1)) for number in range(drafts)]
    return dict(
        {name: target[name] for name in _OF_TARGET}, architectures=["DFlashDraftModel"], model_type="qwen3",
        intermediate_size=target["intermediate_size"], num_hidden_layers=drafts, num_target_layers=layers,
        block_size=BLOCK, dflash_config=dict(mask_token_id=target["vocab_size"] - 1, target_layer_ids=read),
    )  # fmt: skip


def choosing_draft_of(target: Shape, drafts: int = 5) -> Shape:
    """Return the DFlash2 draft of *target*: the DFLASH one with a selector among four candidates."""
    plain = block_draft_of(target, drafts)
    selector = dict(selector_rank=64, selector_top_k=4)
    return dict(plain, architectures=["DFlash2DraftModel"], dflash_config={**plain["dflash_config"], **selector})


# -- small ----------------------------------------------------------------------------------------------------------

VOCABULARY = 4096
EAGLE3_LAYERS: Shape = dict(use_aux_hidden_state=True, eagle_aux_hidden_state_layer_ids=[1, 2, 3])
"""Layers whose output an EAGLE-3 draft reads, as in published drafts; the target needs five layers."""

_COMMON: Shape = dict(
    vocab_size=VOCABULARY, max_position_embeddings=8192, torch_dtype="bfloat16", hidden_act="silu",
    attention_bias=False, tie_word_embeddings=False, rms_norm_eps=1e-5, rope_theta=500000.0, initializer_range=0.02,
    bos_token_id=0, eos_token_id=1, pad_token_id=None,
)  # fmt: skip
_LLAMA = dict(
    _COMMON, hidden_size=2048, intermediate_size=4096, num_hidden_layers=5, mlp_bias=False, num_attention_heads=16,
    num_key_value_heads=4, head_dim=128,
)  # fmt: skip
_SMALL_EXPERTS = dict(num_experts=16, num_experts_per_tok=4, decoder_sparse_step=1, mlp_only_layers=[])
_ROUTED = dict(n_routed_experts=16, num_experts_per_tok=4, norm_topk_prob=True)

LLAMA: Shape = dict(_LLAMA, architectures=["LlamaForCausalLM"], model_type="llama")
LLAMA_CUT: Shape = dict(LLAMA, num_hidden_layers=3)
"""``LLAMA``'s first layers, because weights depend on names: a draft model for it that is sometimes right."""
QWEN3: Shape = dict(_LLAMA, architectures=["Qwen3ForCausalLM"], model_type="qwen3", rms_norm_eps=1e-6)
QWEN3_MOE: Shape = dict(
    _LLAMA, **_SMALL_EXPERTS, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_attention_heads=32,
    moe_intermediate_size=768, norm_topk_prob=True,
)  # fmt: skip
MIMO: Shape = dict(  # its configuration class is Qwen2's plus the number of draft layers
    _LLAMA, architectures=["MiMoForCausalLM"], model_type="qwen2", attention_bias=True, num_nextn_predict_layers=1,
    use_sliding_window=False,
)  # fmt: skip
MIMO_V2: Shape = dict(  # its own class comes with the checkpoint; Llama's keeps unknown fields
    _COMMON, **_ROUTED, architectures=["MiMoV2FlashForCausalLM"], model_type="llama", hidden_size=2048,
    intermediate_size=4096, num_hidden_layers=5, hybrid_layer_pattern=[0, 1, 1, 1, 0], num_attention_heads=16,
    num_key_value_heads=4, head_dim=192, v_head_dim=128, swa_num_attention_heads=16, swa_num_key_value_heads=8,
    swa_head_dim=192, swa_v_head_dim=128, sliding_window=128, sliding_window_size=128,
    add_swa_attention_sink_bias=True, add_full_attention_sink_bias=False, attention_value_scale=0.707,
    partial_rotary_factor=0.334, swa_rope_theta=10000.0, layernorm_epsilon=1e-5, moe_layer_freq=[0, 1, 1, 1, 1],
    moe_intermediate_size=1024, n_group=1, topk_group=1, topk_method="noaux_tc", scoring_func="sigmoid",
    num_nextn_predict_layers=3,
)  # fmt: skip

_STEP_LAYERS, _STEP_DRAFTS = 45, 3  # SGLang numbers draft layers from 45 on, regardless of this config
_STEP_SLIDES = [layer % 4 != 0 for layer in range(_STEP_LAYERS + _STEP_DRAFTS)]
STEP_35: Shape = dict(
    _COMMON, architectures=["Step3p5ForCausalLM"], model_type="step3p5",
    allow_global_per_layer_attribute_access=True,  # the published one has its own class
    hidden_size=1024, intermediate_size=2048, num_hidden_layers=_STEP_LAYERS, num_nextn_predict_layers=_STEP_DRAFTS,
    layer_types=["sliding_attention" if slides else "full_attention" for slides in _STEP_SLIDES],
    sliding_window=512, num_attention_heads=8, num_attention_groups=4,
    attention_other_setting=dict(num_attention_heads=12, num_attention_groups=4, head_dim=128), head_dim=128,
    use_head_wise_attn_gate=True, partial_rotary_factors=[1.0 if slides else 0.5 for slides in _STEP_SLIDES],
    pad_token_id=0, rope_theta=[10000.0 if slides else 5000000.0 for slides in _STEP_SLIDES],
    moe_layers_enum="3,4,5,6", moe_num_experts=16, moe_top_k=4, moe_intermediate_size=512, share_expert_dims=512,
    share_expert_dim=512, norm_expert_weight=True, need_fp32_gate=True, moe_router_scaling_factor=3.0,
    use_moe_router_bias=True, swiglu_limits=[0.0] * len(_STEP_SLIDES), swiglu_limits_shared=[0.0] * len(_STEP_SLIDES),
)  # fmt: skip

_MLA: Shape = dict(
    _COMMON, **_ROUTED, hidden_size=2048, intermediate_size=4096, num_hidden_layers=3, num_attention_heads=16,
    num_key_value_heads=16, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64,
    v_head_dim=128, n_shared_experts=1, moe_intermediate_size=1024, moe_layer_freq=1, first_k_dense_replace=1,
    n_group=4, topk_group=2, topk_method="noaux_tc", scoring_func="sigmoid", routed_scaling_factor=2.5,
    num_nextn_predict_layers=1, rope_scaling=_YARN,
) | dict(rope_theta=10000.0, max_position_embeddings=163840)  # fmt: skip
DEEPSEEK_V3: Shape = dict(_MLA, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3")
DEEPSEEK_V32: Shape = dict(  # the sparse kernels take 64 or 128 heads
    _MLA, architectures=["DeepseekV32ForCausalLM"], model_type="deepseek_v32", num_attention_heads=64,
    num_key_value_heads=64, index_head_dim=128, index_n_heads=64, index_topk=2048,
)  # fmt: skip
DEEPSEEK_V4: Shape = dict(  # the published hidden size, because the kernels of the hyper-connections know it
    _V4, vocab_size=VOCABULARY, max_position_embeddings=8192, num_hidden_layers=5,
    compress_ratios=[0, 4, 128, 4, 128, 0], n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=1024,
    num_hash_layers=1,
)  # fmt: skip
KIMI_K2: Shape = dict(
    _MLA, architectures=["DeepseekV3ForCausalLM"], model_type="kimi_k2", n_group=1, topk_group=1,
    routed_scaling_factor=2.827, num_nextn_predict_layers=0, num_hidden_layers=5,
)  # fmt: skip
KIMI_K2_EAGLE3: Shape = dict(
    KIMI_K2, architectures=["Eagle3DeepseekV2ForCausalLM"], num_hidden_layers=1, draft_vocab_size=VOCABULARY // 2,
    eagle_config=EAGLE3_LAYERS,
)  # fmt: skip

GLM_4_MOE: Shape = dict(
    _COMMON, **_ROUTED, architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", hidden_size=2048,
    intermediate_size=4096, num_hidden_layers=3, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
    partial_rotary_factor=0.5, use_qk_norm=True, n_shared_experts=1, moe_intermediate_size=1408,
    first_k_dense_replace=1, n_group=1, topk_group=1, routed_scaling_factor=2.5, num_nextn_predict_layers=1,
) | dict(attention_bias=True)  # fmt: skip
GPT_OSS: Shape = dict(
    _COMMON, architectures=["GptOssForCausalLM"], model_type="gpt_oss", hidden_size=2880, intermediate_size=2880,
    num_hidden_layers=6, num_attention_heads=64, num_key_value_heads=8, head_dim=64, attention_bias=True,
    num_local_experts=8, num_experts_per_tok=4, sliding_window=128,
    layer_types=["sliding_attention", "full_attention"] * 3, swiglu_limit=7.0, router_aux_loss_coef=0.9,
    rope_scaling=dict(
        rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=4096,
        truncate=False,
    ),
    rope_theta=150000.0, max_position_embeddings=131072,
)  # fmt: skip
MINIMAX_M2: Shape = dict(
    _COMMON, architectures=["MiniMaxM2ForCausalLM"], model_type="minimax_m2", hidden_size=3072,
    intermediate_size=1536, num_hidden_layers=5, num_attention_heads=48, num_key_value_heads=8, head_dim=128,
    rotary_dim=64, num_local_experts=16, num_experts_per_tok=4, scoring_func="sigmoid", use_routing_bias=True,
    use_qk_norm=True, qk_norm_type="per_layer", shared_intermediate_size=0, attn_type_list=[1] * 5,
    mtp_transformer_layers=0, num_mtp_modules=0, use_mtp=False,
)  # fmt: skip

_GDN: Shape = dict(
    _COMMON, hidden_size=2048, intermediate_size=4096, num_hidden_layers=4, num_attention_heads=16,
    num_key_value_heads=2, head_dim=256, partial_rotary_factor=0.25, full_attention_interval=4,
    linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128,
    linear_conv_kernel_dim=4, rms_norm_eps=1e-6,
)  # fmt: skip
_GDN_EXPERTS = dict(_SMALL_EXPERTS, moe_intermediate_size=512, shared_expert_intermediate_size=512, norm_topk_prob=True)
QWEN3_NEXT: Shape = dict(_GDN, **_GDN_EXPERTS, architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next")
_QWEN35_TEXT: Shape = dict(
    _GDN, mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False, attn_output_gate=True,
    rope_parameters=dict(
        rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25, mrope_interleaved=True,
        mrope_section=[11, 11, 10],
    ),
)  # fmt: skip
_VISION: Shape = dict(
    depth=1, hidden_size=256, intermediate_size=512, num_heads=4, in_channels=3, patch_size=16, spatial_merge_size=2,
    temporal_patch_size=2, out_hidden_size=2048, num_position_embeddings=2304, deepstack_visual_indexes=[],
)  # fmt: skip
_QWEN35: Shape = dict(
    torch_dtype="bfloat16", tie_word_embeddings=False,
    language_model_only=True,  # otherwise SGLang needs an image processor's files
)  # fmt: skip
QWEN35: Shape = dict(
    _QWEN35, architectures=["Qwen3_5ForConditionalGeneration"], model_type="qwen3_5",
    text_config=dict(_QWEN35_TEXT, model_type="qwen3_5_text"), vision_config=dict(_VISION, model_type="qwen3_5"),
)  # fmt: skip
QWEN36_MOE: Shape = dict(
    _QWEN35, architectures=["Qwen3_5MoeForConditionalGeneration"], model_type="qwen3_5_moe",
    text_config=dict(_QWEN35_TEXT, **_GDN_EXPERTS, model_type="qwen3_5_moe_text"),
    vision_config=dict(_VISION, model_type="qwen3_5_moe"),
)  # fmt: skip

NEMOTRON_H: Shape = dict(
    _COMMON, **_ROUTED, architectures=["NemotronHForCausalLM"], model_type="nemotron_h", hidden_size=2048,
    intermediate_size=1856, hybrid_override_pattern="MEM*ME", num_hidden_layers=6, num_attention_heads=16,
    num_key_value_heads=2, head_dim=128, attention_head_dim=128, mamba_num_heads=32, mamba_head_dim=64, n_groups=8,
    ssm_state_size=128, conv_kernel=4, chunk_size=128, mlp_hidden_act="relu2", mamba_hidden_act="silu",
    use_bias=False, use_conv_bias=True, mamba_proj_bias=False, mlp_bias=False, layer_norm_epsilon=1e-5,
    residual_in_fp32=False, n_shared_experts=1, moe_intermediate_size=1856, moe_shared_expert_intermediate_size=3712,
    n_group=1, topk_group=1, routed_scaling_factor=2.5, num_nextn_predict_layers=1, mtp_hybrid_override_pattern="*E",
    time_step_limit=[0.0, 1e9],
)  # fmt: skip

LLAMA_4: Shape = dict(
    architectures=["Llama4ForConditionalGeneration"], model_type="llama4", torch_dtype="bfloat16", boi_token_index=2,
    eoi_token_index=3, image_token_index=4, tie_word_embeddings=False,
    text_config=dict(
        _COMMON, model_type="llama4_text", hidden_size=2048, intermediate_size=2048, intermediate_size_mlp=4096,
        num_hidden_layers=6, num_attention_heads=16, num_key_value_heads=4, head_dim=128, num_local_experts=8,
        num_experts_per_tok=1, interleave_moe_layer_step=1, attention_chunk_size=8192, use_qk_norm=True,
        no_rope_layers=[1, 1, 1, 0, 1, 1], attn_temperature_tuning=True, floor_scale=8192, attn_scale=0.1,
        rope_scaling=dict(
            rope_type="llama3", factor=8.0, high_freq_factor=4.0, low_freq_factor=1.0,
            original_max_position_embeddings=4096,
        ),
    ) | dict(pad_token_id=5),
    vision_config=dict(
        model_type="llama4_vision_model", hidden_size=256, intermediate_size=512, num_hidden_layers=1,
        num_attention_heads=4, image_size=56, patch_size=14, projector_input_dim=256, projector_output_dim=256,
        vision_output_dim=256, rope_theta=10000,
    ),
)  # fmt: skip

_GEMMA_4_TEXT: Shape = dict(
    model_type="gemma4_text", torch_dtype="bfloat16", vocab_size=VOCABULARY, vocab_size_per_layer_input=VOCABULARY,
    hidden_size=2048, intermediate_size=4096, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4,
    num_global_key_value_heads=2, head_dim=256, global_head_dim=512, hidden_activation="gelu_pytorch_tanh",
    hidden_size_per_layer_input=0, num_kv_shared_layers=0, attention_k_eq_v=True, sliding_window=1024,
    layer_types=["sliding_attention"] * 5 + ["full_attention"], max_position_embeddings=8192,
    final_logit_softcapping=30.0, enable_moe_block=False, rms_norm_eps=1e-6, bos_token_id=0, eos_token_id=1,
    pad_token_id=0, tie_word_embeddings=True,
)  # fmt: skip
GEMMA_4: Shape = dict(
    architectures=["Gemma4ForConditionalGeneration"], model_type="gemma4", torch_dtype="bfloat16",
    language_model_only=True, tie_word_embeddings=True, audio_config=None,
    vision_config=dict(
        model_type="gemma4_vision", hidden_size=256, intermediate_size=512, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=4, head_dim=64, global_head_dim=64,
    ),
    text_config=_GEMMA_4_TEXT,
)  # fmt: skip
GEMMA_4_ASSISTANT: Shape = dict(
    architectures=["Gemma4AssistantForCausalLM"], model_type="gemma4_assistant", torch_dtype="bfloat16",
    backbone_hidden_size=2048, tie_word_embeddings=True,
    text_config=dict(
        _GEMMA_4_TEXT, hidden_size=1024, intermediate_size=2048, num_hidden_layers=4,
        layer_types=["sliding_attention"] * 3 + ["full_attention"], num_kv_shared_layers=4,
        vocab_size_per_layer_input=0,
    ),
)  # fmt: skip


def eagle3_of(target: Mapping[str, Any]) -> Shape:
    """Return the EAGLE-3 draft of a small shape: one Llama layer as wide as *target*, and half of its vocabulary."""
    text = target.get("text_config", target)
    hidden = text["hidden_size"]
    return dict(
        _LLAMA, architectures=["LlamaForCausalLMEagle3"], model_type="llama", hidden_size=hidden,
        intermediate_size=2 * hidden, num_hidden_layers=1, max_position_embeddings=text["max_position_embeddings"],
        draft_vocab_size=VOCABULARY // 2, eagle_config=EAGLE3_LAYERS,
    )  # fmt: skip


# -- tiny -----------------------------------------------------------------------------------------------------------

_TINY = dict(hidden_size=128, intermediate_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=32)
TINY: Shape = LLAMA | _TINY | dict(vocab_size=512, torch_dtype="float32")
TINY_EAGLE3 = dict(TINY, architectures=["LlamaForCausalLMEagle3"], num_hidden_layers=1, draft_vocab_size=256)
TINY_LAYER = dict(TINY_EAGLE3, draft_vocab_size=512)
"""A layer of multi-layer EAGLE."""

TINY_TYPED = dict(TINY, layer_types=["full_attention"] * 5)
"""A target whose configuration names its layer types, by which an assistant finds the layer that it reads."""

TINY_ASSISTANT: Shape = dict(
    GEMMA_4_ASSISTANT, torch_dtype="float32", backbone_hidden_size=128,
    text_config=dict(
        GEMMA_4_ASSISTANT["text_config"], torch_dtype="float32", vocab_size=512, hidden_size=64,
        intermediate_size=128, num_hidden_layers=2, num_kv_shared_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_global_key_value_heads=2, head_dim=32, global_head_dim=32,
        layer_types=["full_attention"] * 2,
    ),
)  # fmt: skip
_OF_MOE = ("architectures", "model_type", "rms_norm_eps", "norm_topk_prob", *_SMALL_EXPERTS)
TINY_MOE: Shape = TINY | {key: QWEN3_MOE[key] for key in _OF_MOE} | dict(num_experts=8, moe_intermediate_size=64)
TINY_MOE_PAIR = (("", TINY_MOE), ("-eagle3", TINY_EAGLE3))
"""A mixture of experts and its draft, by the suffix of their folder names."""

TINY_MOE_ARGUMENTS = (
    *("--load-format", "dummy", "--skip-tokenizer-init", "--disable-custom-all-reduce"),
    *("--chunked-prefill-size", "256", "--max-running-requests", "96"),
)
"""Arguments of its servers with several ranks."""

TWO_RANKS_ON_CPU = {"SGLANG_NCCL_SO_PATH": "/nowhere/no-nccl", "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
"""SGLang would look for NCCL and for a memory node per rank; a CPU has gloo and two cores."""
