"""The scheduler: the controller beside SGLang's worker, its policy, and the CUDA graphs of all steps.

May import hooking, policy and runtime.
"""

from __future__ import annotations

from sglang_adaptive.sglang_plugin.hooking.hook import EXECUTOR, RESULTS, SRT, WORKER, Hook, Need, Process

_WEIGHTS = SRT + "managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager."

HOOKS = (
    Hook(
        SRT + "speculative.adaptive_spec_params.resolve_candidate_steps_from_config",
        "replace",
        "scheduler.policies:resolve_candidate_steps",
        ("cfg_path",),
        process=Process.EVERY,
    ),
    *(
        # A scheduler asks it for SGLang's server in Rust.
        Hook(
            SRT + "managers.utils.compute_num_reserved_tokens",
            "around",
            "scheduler.capacity:reserved_tokens",
            process=process,
        )
        for process in (Process.LAUNCHER, Process.SCHEDULER)
    ),
    Hook(
        SRT + "managers.multi_tokenizer_mixin.write_data_for_multi_tokenizer",
        "around",
        "scheduler.capacity:write_for_tokenizer_workers",
        ("port_args", "server_args", "scheduler_info"),
        process=Process.LAUNCHER,
    ),
    Hook(
        SRT + "managers.scheduler.Scheduler.update_running_batch",
        "around",
        "scheduler.capacity:update_running_batch",
        ("self", "batch"),
    ),
    Hook(
        SRT + "mem_cache.allocation_sizing.get_alloc_reserve_per_decode", "around", "scheduler.capacity:alloc_reserve"
    ),
    Hook(
        SRT + "mem_cache.allocation_sizing.get_req_to_token_extra_context_len",
        "around",
        "scheduler.capacity:places_beyond_context",
    ),
    Hook(WORKER + "AdaptiveSpeculativeParams", "replace", "scheduler.policies:build_policy"),
    Hook(WORKER + "AdaptiveController", "replace", "scheduler.worker:build_controller"),
    Hook(WORKER + "SpecRuntimeState", "replace", "scheduler.worker:SpecRuntimeState"),
    Hook(
        WORKER + "EAGLEWorkerV2.build_adaptive_runtime_state",
        "around",
        "scheduler.graph_sizes:build",
        ("speculative_num_steps", "speculative_num_draft_tokens", "cuda_graph_bs"),
    ),
    # Of the hooks on one function an earlier one runs first: those after init_cuda_graphs need all states.
    Hook(WORKER + "EAGLEWorkerV2.init_cuda_graphs", "around", "scheduler.target_scope:init_cuda_graphs", ("self",)),
    Hook(WORKER + "EAGLEWorkerV2.build_adaptive_runtime_state", "around", "scheduler.target_scope:build", ("self",)),
    Hook(
        EXECUTOR + "runner_backend.full_cuda_graph_backend.FullCudaGraphBackend.capture_one",
        "around",
        "scheduler.further_captures:capture_one",
        ("self", "shape_key", "forward_fn"),
    ),
    *(
        Hook(
            EXECUTOR + f"runner.{phase}_cuda_graph_runner.freeze_gc",
            "around",
            "scheduler.further_captures:freeze_gc",
            ("enable_cudagraph_gc",),
        )
        for phase in ("prefill", "decode")
    ),
    Hook(
        WORKER + "EAGLEWorkerV2.apply_runtime_state",
        "after",
        "scheduler.worker:compact_override_log",
        ("self", "state"),
    ),
    Hook(RESULTS + "_resolve_spec_v2_tokens", "before", "scheduler.worker:note_drafted", ("self", "result", "batch")),
    Hook(
        WORKER + "EAGLEWorkerV2.on_verify_complete_cpu",
        "around",
        "scheduler.worker:on_verify_complete",
        ("num_correct_drafts_per_req", "batch_size"),
    ),
    Hook(
        RESULTS + "process_batch_result_prefill",
        "before",
        "scheduler.worker:interrupt_clock",
        ("self", "batch", "result"),
    ),
    Hook(
        WORKER + "EAGLEWorkerV2._forward_prefill_batch",
        "before",
        "scheduler.worker:interrupt_for_prefill",
        ("self", "batch"),
    ),
    Hook(
        WORKER + "EAGLEWorkerV2._forward_dp_spec_prefill_coordination",
        "before",
        "scheduler.worker:interrupt_for_prefill",
        ("self", "batch", "plan"),
    ),
    *(
        Hook(_WEIGHTS + update, "after", "scheduler.weight_updates:after_update", ("self", "recv_req"))
        for update in ("update_weights_from_disk", "update_weights_from_ipc", "end_weight_update")
    ),
    Hook(
        WORKER + "EAGLEWorkerV2._build_trivial_verify_input",
        "before",
        "scheduler.host_lengths:expect",
        ("self", "batch"),
    ),
    Hook(
        SRT + "managers.overlap_utils.FutureMap.resolve_seq_lens_cpu",
        "around",
        "scheduler.host_lengths:resolve",
        ("self", "batch", "stream_ordered"),
    ),
)

NEEDS = (
    Need(SRT + "runtime_context.get_context"),
    Need(SRT + "runtime_context.get_spec"),
    Need(SRT + "runtime_context.get_parallel"),
    Need(SRT + "runtime_context.RuntimeContext.override", ("source",)),
    Need(SRT + "runtime_context.get_exec"),
    Need(SRT + "runtime_context._ConfigBag.override"),
    Need(EXECUTOR + "cuda_graph_config.with_phase", ("config", "phase")),
    Need(EXECUTOR + "cuda_graph_config.PhaseConfig", fields=("bs", "backend")),
    Need(SRT + "utils.common.get_cuda_graph_batch_size_alignment"),
    Need(SRT + "utils.common.require_mlp_tp_gather"),
    Need(SRT + "utils.common.get_available_gpu_memory", ("device", "gpu_id")),
    Need(SRT + "speculative.spec_utils.draft_tp_context", ("layout",)),
    Need(SRT + "layers.moe.utils.speculative_moe_backend_context"),
    Need(SRT + "layers.moe.utils.speculative_moe_a2a_backend_context"),
    Need(WORKER + "EagleDraftWorker.init_attention_backend", ("self",)),
    Need(WORKER + "EagleDraftWorker._capture_cuda_graphs", ("self",)),
    Need(SRT + "utils.triton_load_watch.mark_serving_started"),
    Need(SRT + "utils.triton_load_watch._serving_started"),
    Need(SRT + "arg_groups.overrides.resolving_view", ("server_args",)),
    Need(
        SRT + "speculative.adaptive_runtime_state.SpecRuntimeState",
        fields=(
            "speculative_num_steps",
            "speculative_num_draft_tokens",
            "draft_attn_backend",
            "cuda_graph_runner",
            "target_attn_backend",
            "target_graph_runner",
            "draft_extend_attn_backend",
            "cuda_graph_runner_for_draft_extend",
        ),
    ),
    Need(SRT + "speculative.adaptive_runtime_state.AdaptiveController.__init__", ("worker", "policy")),
    Need(WORKER + "EAGLEWorkerV2.on_verify_complete_cpu", patched="num_draft_tokens"),
    Need(WORKER + "EAGLEWorkerV2.activate_step_by_batch", ("batch_size",)),
    Need(SRT + "distributed.parallel_state.GroupCoordinator.broadcast_object", ("obj", "src")),
    Need(SRT + "distributed.parallel_state.GroupCoordinator", fields=("rank_in_group",)),
    Need(SRT + "managers.scheduler_components.internal_state.UpdateRejected"),
    Need(SRT + "runtime_context.max_speculative_num_draft_tokens"),
    Need(SRT + "arg_groups.overrides.max_speculative_num_draft_tokens", ("server_args",)),
    Need(SRT + "mem_cache.allocation_sizing.get_alloc_page_size"),
    Need(SRT + "mem_cache.allocator.paged.PagedTokenToKVPoolAllocator.available_size", ("self",)),
    Need(SRT + "managers.schedule_batch.ScheduleBatch.check_decode_mem", ("self",)),
    Need(SRT + "managers.schedule_batch.ReqKvInfo", fields=("kv_committed_len",)),
)
