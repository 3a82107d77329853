"""Repairs of defects of SGLang 0.5.23 that adaptive speculation meets; patches/ has the same as patches.

May import hooking alone.
"""

from __future__ import annotations

from sglang_adaptive.sglang_plugin.hooking.hook import EXECUTOR, SRT, WORKER, Hook, Need, Process

HOOKS = (
    Hook(
        SRT + "mem_cache.kv_cache_configurator.KVCacheConfigurator._handle_max_mamba_cache",
        "around",
        "repairs.hybrids:price_the_widest",
        ("self", "total_rest_memory"),
    ),
    Hook(
        "sglang.kernels.ops.mamba.triton_ops.ssu_dispatch.TritonSSUBackend.__call__",
        "around",
        "repairs.mamba2_width:by_the_buffer",
        ("self", "intermediate_states_buffer", "cache_steps"),
    ),
    Hook(
        WORKER + "EAGLEWorkerV2._build_trivial_verify_input",
        "after",
        "repairs.zero_step_sampling:add_draft_probs",
        ("self", "batch"),
    ),
    Hook(
        EXECUTOR + "model_runner.ModelRunner._get_attention_backend",
        "after",
        "repairs.target_backends:finish",
        ("self", "init_new_workspace"),
    ),
    Hook(
        EXECUTOR + "pool_configurator.compute_swa_request_cap",
        "around",
        "repairs.sizes:at_the_widest",
        ("page_size", "window", "max_running_requests"),
    ),
    Hook(
        SRT + "mem_cache.deepseek_v4_memory_pool.resolve_compress_state_ring_size",
        "around",
        "repairs.sizes:at_the_widest",
        ("compress_ratio",),
    ),
    Hook(
        SRT + "mem_cache.deepseek_v4_memory_pool.get_swa_ring_size",
        "around",
        "repairs.sizes:at_the_widest",
        ("sliding_window", "is_speculative"),
    ),
    Hook(SRT + "runtime_context.cutedsl_moe_max_num_tokens", "around", "repairs.sizes:at_the_widest"),
    Hook(
        SRT + "layers.attention.base_attn_backend.AttentionBackend.update_verify_buffers_to_fill_after_draft",
        "around",
        "repairs.plan_stream:nothing_to_correct",
        ("self", "spec_info", "cuda_graph_bs"),
        process=Process.SCHEDULER_PLAN_STREAM,
    ),
    Hook(
        SRT + "managers.scheduler.Scheduler.is_disable_overlap_for_batch",
        "around",
        "repairs.mixed_grammar:wait_for_results",
        ("self", "batch", "last_batch"),
    ),
)

NEEDS = (
    Need(SRT + "runtime_context.max_speculative_num_draft_tokens"),
    Need(SRT + "mem_cache.kv_index_translator.KVIndexTranslator.bind_and_verify_backends", ("backends",)),
    Need(
        SRT + "layers.attention.base_attn_backend.AttentionBackend",
        fields=("prefill_attention_backend_str", "decode_attention_backend_str"),
    ),
    Need(SRT + "environ.envs.SGLANG_ENABLE_OVERLAP_PLAN_STREAM"),
)
