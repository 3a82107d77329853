"""SGLang's attention backends, and the kernels that a round runs beside the models."""

from __future__ import annotations

from sglang_adaptive.sglang_plugin import repairs
from sglang_adaptive.sglang_plugin.hooks import EXECUTOR, FA3, SRT, Process, around, needs, to_stages
from sglang_adaptive.sglang_plugin.stage import Stage

_TRITON = SRT + "layers.attention.triton_backend.TritonAttnBackend."
_FLASHINFER = SRT + "layers.attention.flashinfer_backend.FlashInferAttnBackend."
_FLASHINFER_DRAFT = SRT + "layers.attention.flashinfer_backend.FlashInferMultiStepDraftBackend."


around(EXECUTOR + "model_runner.ModelRunner._get_attention_backend", "self init_new_workspace")(
    repairs.finished_backend
)
around(
    SRT + "layers.attention.base_attn_backend.AttentionBackend.update_verify_buffers_to_fill_after_draft",
    "self spec_info cuda_graph_bs",
    process=Process.SCHEDULER_PLAN_STREAM,
)(repairs.correct_plan_stream)
to_stages(Stage.small_copy, "sglang.kernels.ops.memory.small_copy.try_small_copy", "dsts srcs")

_EAGER, _GRAPH = "init_forward_metadata", "init_forward_metadata_out_graph"
for _event, _maker in (
    (Stage.triton_metadata, _TRITON + _EAGER),
    (Stage.triton_metadata, _TRITON + _GRAPH),
    (Stage.plan, _FLASHINFER + _EAGER),
    (Stage.plan_replay, _FLASHINFER + _GRAPH),
    (Stage.plan, _FLASHINFER_DRAFT + _EAGER),
    (Stage.plan_draft_replay, _FLASHINFER_DRAFT + _GRAPH),
):
    to_stages(_event, _maker, "self forward_batch", process=Process.SCHEDULER_CUDA)

_ATTENTION = "self q k v layer forward_batch"
for _backend in (_TRITON, _FLASHINFER):  # these can run a zero-step round with the plain decode kernel
    to_stages(Stage.forward_extend, _backend + "forward_extend", _ATTENTION, process=Process.SCHEDULER_CUDA)
_FA3 = FA3 + "FlashAttentionBackend."
for _forward in ("forward_extend", "forward_decode"):
    to_stages(Stage.fa3_attention, _FA3 + _forward, _ATTENTION, process=Process.SCHEDULER_CUDA)
to_stages(Stage.fa3_kernel, FA3 + "flash_attn_with_kvcache", "scheduler_metadata", process=Process.SCHEDULER_CUDA)
to_stages(Stage.fa3_metadata, _FA3 + _GRAPH, "self forward_batch in_capture", process=Process.SCHEDULER_CUDA)
to_stages(
    Stage.fa3_decode_metadata,
    FA3 + "normal_decode_set_metadata",
    "cache_seqlens_int32 cu_seqlens_k page_table req_to_token req_pool_indices max_seq_pages seq_lens seq_len_delta "
    "page_size",
    process=Process.SCHEDULER_CUDA,
)
to_stages(
    Stage.fa3_extend_metadata,
    FA3 + "draft_extend_set_metadata",
    "cache_seqlens_int32 cu_seqlens_k cu_seqlens_q page_table req_to_token req_pool_indices seq_lens extend_seq_lens "
    "page_size full_to_swa_index_mapping",
    process=Process.SCHEDULER_CUDA,
)

needs(
    """
    mem_cache.kv_index_translator.KVIndexTranslator.bind_and_verify_backends: backends
    layers.attention.base_attn_backend.AttentionBackend: prefill_attention_backend_str decode_attention_backend_str
    mem_cache.kv_index_translator.KVIndexTranslator: is_translating reads_are_translated req_to_token
    layers.attention.triton_backend.TritonAttnBackend: use_verify_shared_kv verify_shared_kv_fwd use_verify_splitkv
        topk is_draft_runner use_mla dcp_size enable_deterministic device_core_count
    layers.attention.flashinfer_backend.FlashInferAttnBackend: prefill_backend decode_backend dispatch_reason
        use_sliding_window_kv_pool is_dllm_model prefill_uses_dequant_workspace decode_uses_dequant_workspace
        enable_deterministic disable_cuda_graph_kv_split indices_updater_decode kv_index_translator
        decode_cuda_graph_metadata prefill_cuda_graph_metadata draft_extend_cuda_graph_metadata
    layers.attention.flashinfer_backend.FlashInferMultiStepDraftBackend: topk draft_window_size attn_backends
    environ.envs.SGLANG_ENABLE_OVERLAP_PLAN_STREAM
    layers.attention.triton_backend.TritonAttnBackend.forward_decode: self q k v layer forward_batch
    layers.attention.flashinfer_backend.FlashInferAttnBackend.forward_decode: self q k v layer forward_batch
    sglang.kernels.ops.memory.common.write_req_to_token_pool_triton
    mem_cache.allocation.assign_req_to_token_pool
    """
)
needs(
    """
    layers.attention.flashattention_backend.FlashAttentionBackend.draft_extend_metadata_captured_in_graph: self
    layers.attention.flashattention_backend.FlashAttentionBackend._spec_read_seq_len_delta: self forward_mode
        spec_info
    layers.attention.flashattention_backend.FlashAttentionBackend: _get_scheduler_metadata
        _disable_scheduler_metadata_precompute _kv_shard_pool fa_impl_ver use_mla topk attn_cp_size
        local_attn_builder is_encoder_decoder needs_cpu_seq_lens use_sliding_window_kv_pool kv_index_translator
        max_num_pages req_to_token page_size target_verify_metadata decode_cuda_graph_metadata
    layers.attention.flashattention_backend.FlashAttentionMetadata: cache_seqlens_int32 cu_seqlens_k cu_seqlens_q
        max_seq_len_q page_table
    """,
    on_cuda=True,
)
