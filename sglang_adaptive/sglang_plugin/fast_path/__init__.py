"""Leaves out work that SGLang repeats in every round, with bit-identical results.

May import hooking, scheduler and runtime. Each file falls back to SGLang's own code on its first error.
"""

from __future__ import annotations

from sglang_adaptive.sglang_plugin.hooking.hook import EXECUTOR, FA3, SRT, WORKER, Hook, Need, Process

HOOKS = (
    Hook(
        EXECUTOR + "runner_backend.full_cuda_graph_backend.FullCudaGraphBackend.capture_one",
        "around",
        "fast_path.shared_hidden_states:capture_one",
        ("self", "shape_key", "forward_fn"),
    ),
    Hook(
        SRT + "layers.logits_processor.pack_aux_hidden_states",
        "around",
        "fast_path.shared_hidden_states:join",
        ("aux_hidden_states",),
    ),
    Hook(
        EXECUTOR + "runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.capture",
        "before",
        "fast_path.shared_page_tables:share",
        ("self",),
    ),
    Hook(
        SRT + "speculative.multi_layer_eagle_draft_extend_cuda_graph_runner."
        "MultiLayerEagleMultiStepDraftExtendCudaGraphRunner._on_runners_created",
        "before",
        "fast_path.shared_page_tables:share_layers",
        ("self",),
    ),
    Hook(WORKER + "EAGLEWorkerV2.init_cuda_graphs", "before", "fast_path.kernel_variants:ignore_alignment", ("self",)),
    Hook(
        "sglang.kernels.ops.memory.small_copy.try_small_copy",
        "around",
        "fast_path.kernel_variants:copy_from_aligned",
        ("dsts", "srcs"),
    ),
    Hook(WORKER + "EAGLEWorkerV2.init_cuda_graphs", "after", "fast_path.reserve_ahead:install", ("self",)),
    Hook(
        SRT + "speculative.eagle_utils.eagle_prepare_for_decode",
        "around",
        "fast_path.reserve_ahead:prepare_for_decode",
        ("batch",),
    ),
    Hook(
        SRT + "speculative.eagle_utils.page_aligned_decode_alloc_lens",
        "around",
        "fast_path.reserve_ahead:decode_alloc_lens",
        ("reqs", "reserve", "page_size"),
    ),
    Hook(
        FA3 + "FlashAttentionBackend.forward_extend",
        "around",
        "fast_path.verify_schedule:forward_extend",
        ("self", "q", "k", "v", "layer", "forward_batch"),
        process=Process.SCHEDULER_CUDA,
    ),
    Hook(
        FA3 + "flash_attn_with_kvcache",
        "around",
        "fast_path.verify_schedule:flash_attn_with_kvcache",
        ("scheduler_metadata",),
        process=Process.SCHEDULER_CUDA,
    ),
    Hook(
        FA3 + "FlashAttentionBackend.forward_extend",
        "around",
        "fast_path.queries_in_place:forward",
        ("self", "q", "k", "v", "layer", "forward_batch"),
        process=Process.SCHEDULER_CUDA,
    ),
    Hook(
        FA3 + "FlashAttentionBackend.forward_decode",
        "around",
        "fast_path.queries_in_place:forward",
        ("self", "q", "k", "v", "layer", "forward_batch"),
        process=Process.SCHEDULER_CUDA,
    ),
    Hook(
        FA3 + "FlashAttentionBackend.init_forward_metadata_out_graph",
        "around",
        "fast_path.extend_metadata:out_graph",
        ("self", "forward_batch", "in_capture"),
        process=Process.SCHEDULER_CUDA,
    ),
    Hook(
        SRT + "speculative.eagle_draft_extend_cuda_graph_runner.EAGLEDraftExtendCudaGraphRunner.execute",
        "around",
        "fast_path.extend_metadata:execute",
        ("self", "forward_batch", "select_index"),
        process=Process.SCHEDULER_CUDA,
    ),
    Hook(
        FA3 + "normal_decode_set_metadata",
        "around",
        "fast_path.length_kernel:normal_decode_set_metadata",
        (
            "cache_seqlens_int32",
            "cu_seqlens_k",
            "page_table",
            "req_to_token",
            "req_pool_indices",
            "max_seq_pages",
            "seq_lens",
            "seq_len_delta",
            "page_size",
        ),
        process=Process.SCHEDULER_CUDA,
    ),
    Hook(
        FA3 + "draft_extend_set_metadata",
        "around",
        "fast_path.length_kernel:draft_extend_set_metadata",
        (
            "cache_seqlens_int32",
            "cu_seqlens_k",
            "cu_seqlens_q",
            "page_table",
            "req_to_token",
            "req_pool_indices",
            "seq_lens",
            "extend_seq_lens",
            "page_size",
            "full_to_swa_index_mapping",
        ),
        process=Process.SCHEDULER_CUDA,
    ),
)

NEEDS = (
    Need("sglang.kernels.ops.memory.common.write_req_to_token_pool_triton"),
    Need(SRT + "mem_cache.allocation.assign_req_to_token_pool"),
    Need(SRT + "managers.schedule_batch.ScheduleBatch.maybe_evict_swa", ("self",)),
    Need(SRT + "managers.schedule_batch.ScheduleBatch.cumulate_penalty_output_tokens", ("self",)),
    Need(SRT + "mem_cache.allocation_sizing.get_alloc_reserve_per_decode"),
    Need(SRT + "mem_cache.allocator.token.TokenToKVPoolAllocator.available_size", ("self",)),
    Need(SRT + "mem_cache.base_prefix_cache.BasePrefixCache.evictable_size", ("self",)),
    Need(SRT + "mem_cache.memory_pool.ReqToTokenPool.alloc_rows"),
    Need(FA3 + "FlashAttentionBackend.draft_extend_metadata_captured_in_graph", ("self",), on_cuda=True),
    Need(
        FA3 + "FlashAttentionMetadata",
        fields=("cache_seqlens_int32", "cu_seqlens_q", "max_seq_len_q", "page_table"),
        on_cuda=True,
    ),
)
