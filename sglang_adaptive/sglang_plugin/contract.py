"""What this package needs of SGLang, and whether the installed one has it.

Every attribute that is overridden, called or read is listed with the parameters or fields that are relied on.
SGLang logs and swallows an error while it applies hooks, so a target that moved would otherwise turn adaptive
speculation off without a word.
"""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

SUPPORTED = "sglang 0.5.23"


class ContractError(RuntimeError):
    """The installed SGLang does not have the shape that this package was written against."""


@dataclass(frozen=True, slots=True)
class Needed:
    """One attribute: a callable with these parameters, or a class with these fields."""

    target: str
    parameters: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    patched: str | None = None
    """A parameter that only a source with this project's patches has; plugin and patches exclude each other."""

    def problem(self) -> str | None:
        """Return what is wrong with the installed SGLang's attribute, or None."""
        try:
            found = pkgutil.resolve_name(self.target)
        except (ImportError, AttributeError) as error:
            return f"{self.target} is missing ({error})"
        if self.patched in _parameter_names(found):
            return f"{self.target} carries this project's patches; use the patches or the plugin, not both"
        missing = [name for name in self.parameters if name not in _parameter_names(found)]
        missing += [name for name in self.fields if name not in _field_names(found)]
        return f"{self.target} has no {', '.join(missing)}" if missing else None


_SRT = "sglang.srt."
_EXECUTOR = _SRT + "model_executor."
_PARAMS = _SRT + "speculative.adaptive_spec_params."
_WORKER = _SRT + "speculative.eagle_worker_v2."
_RESULTS = _SRT + "managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor."
_STATE = _SRT + "managers.scheduler_components.internal_state."

HOOKED = (
    Needed(_SRT + "server_args.ServerArgs.from_cli_args", ("args",)),
    Needed(_SRT + "server_args.ServerArgs.resolve_once", ("self",)),
    Needed(_PARAMS + "resolve_candidate_steps_from_config", ("cfg_path",)),
    Needed(_PARAMS + "adaptive_unsupported_reason", ("server_args",)),
    Needed(_WORKER + "AdaptiveController"),
    Needed(_WORKER + "AdaptiveSpeculativeParams"),
    Needed(_WORKER + "SpecRuntimeState"),
    Needed(
        _WORKER + "EAGLEWorkerV2.build_adaptive_runtime_state",
        ("speculative_num_steps", "speculative_num_draft_tokens", "cuda_graph_bs"),
    ),
    Needed(
        _EXECUTOR + "runner_backend.full_cuda_graph_backend.FullCudaGraphBackend.capture_one",
        ("self", "shape_key", "forward_fn"),
    ),
    Needed(_SRT + "layers.logits_processor.pack_aux_hidden_states", ("aux_hidden_states",)),
    Needed(_EXECUTOR + "runner.decode_cuda_graph_runner.freeze_gc", ("enable_cudagraph_gc",)),
    Needed(_EXECUTOR + "runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.capture", ("self",)),
    Needed(_WORKER + "EAGLEWorkerV2._build_trivial_verify_input", ("self", "batch")),
    Needed(_WORKER + "EAGLEWorkerV2.apply_runtime_state", ("self", "state")),
    Needed(_EXECUTOR + "model_runner.ModelRunner._get_attention_backend", ("self", "init_new_workspace")),
    Needed(_EXECUTOR + "pool_configurator.compute_swa_request_cap", ("page_size", "window", "max_running_requests")),
    Needed(_WORKER + "EAGLEWorkerV2.init_cuda_graphs", ("self",)),
    Needed("sglang.kernels.ops.memory.small_copy.try_small_copy", ("dsts", "srcs")),
    Needed(_WORKER + "EagleDraftWorker._draft_extend_for_decode", ("self", "batch", "batch_result", "kv_loc_plan")),
    Needed(_WORKER + "EagleDraftWorker.draft", ("self", "batch")),
    Needed(_SRT + "managers.schedule_batch.Req.owned_kv_len", ("self",)),
    Needed(_SRT + "speculative.eagle_utils.eagle_prepare_for_decode", ("batch",)),
    Needed(_SRT + "speculative.eagle_utils.page_aligned_decode_alloc_lens", ("reqs", "reserve", "page_size")),
    Needed(_RESULTS + "_resolve_spec_v2_tokens", ("self", "result", "batch")),
    Needed(_RESULTS + "process_batch_result_prefill", ("self", "batch", "result")),
    Needed(_WORKER + "EAGLEWorkerV2._forward_prefill_batch", ("self", "batch")),
    Needed(_WORKER + "EAGLEWorkerV2._forward_dp_spec_prefill_coordination", ("self", "batch", "plan")),
    Needed(
        _SRT + "managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter.report_decode_stats",
        ("self",),
    ),
    Needed(_SRT + "managers.scheduler.Scheduler.init_metrics_reporter", ("self",)),
    Needed(_SRT + "observability.metrics_collector.SchedulerMetricsCollector.log_stats", ("self", "stats")),
    Needed(_STATE + "SchedulerInternalStateController._add_speculative", ("self", "state")),
    Needed(_STATE + "SchedulerInternalStateController.get_internal_state", ("self", "recv_req")),
    Needed(_STATE + "SchedulerInternalStateController.set_internal_state", ("self", "recv_req")),
    Needed(_STATE + "SchedulerInternalStateController._update_handlers", ("self",)),
    Needed(_SRT + "managers.scheduler.Scheduler.get_init_info", ("self",)),
    Needed(_SRT + "managers.data_parallel_controller.DataParallelController.get_init_info", ("self",)),
    Needed(
        _SRT + "managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics",
        ("self", "meta_info", "recv_obj", "i"),
    ),
    Needed(_SRT + "entrypoints.engine._wait_for_scheduler_ready"),
    Needed(
        _SRT + "entrypoints.http_server._setup_and_run_http_server",
        ("server_args", "tokenizer_manager", "template_manager", "port_args", "scheduler_infos"),
    ),
    Needed(
        _SRT + "layers.attention.base_attn_backend.AttentionBackend.update_verify_buffers_to_fill_after_draft",
        ("self", "spec_info", "cuda_graph_bs"),
    ),
    Needed(_WORKER + "get_plan_stream", ("device",)),
    Needed(_WORKER + "prepare_for_draft", ("draft_input", "batch", "target_translator", "num_draft_tokens")),
    Needed(
        _SRT + "speculative.eagle_worker_common.eagle_prepare_for_verify",
        ("verify_input", "req_to_token_pool", "batch", "target_worker"),
    ),
    Needed(_SRT + "model_executor.runner_utils.buffers.DecodeInputBuffers.share_buffers", ("self", "exclude")),
    Needed(_SRT + "entrypoints.http_server._wait_and_warmup", ("server_args", "execute_warmup_func")),
    Needed(_SRT + "utils.auth.add_api_key_middleware", ("app",)),
)
"""Attributes that the package overrides."""

_FA3 = _SRT + "layers.attention.flashattention_backend."

ON_CUDA = (
    Needed(
        _SRT + "speculative.eagle_worker_common.eagle_sample",
        ("verify_input", "batch", "logits_output", "grammar_mask", "watermark_state"),
    ),
    Needed(_FA3 + "FlashAttentionBackend.forward_extend", ("self", "q", "k", "v", "layer", "forward_batch")),
    Needed(_FA3 + "FlashAttentionBackend.forward_decode", ("self", "q", "k", "v", "layer", "forward_batch")),
    Needed(_FA3 + "flash_attn_with_kvcache", ("scheduler_metadata",)),
    Needed(_FA3 + "FlashAttentionBackend.init_forward_metadata_out_graph", ("self", "forward_batch", "in_capture")),
    Needed(_FA3 + "FlashAttentionBackend.draft_extend_metadata_captured_in_graph", ("self",)),
    Needed(
        _SRT + "speculative.eagle_draft_extend_cuda_graph_runner.EAGLEDraftExtendCudaGraphRunner.execute",
        ("self", "forward_batch", "select_index"),
    ),
    Needed(
        _FA3 + "normal_decode_set_metadata",
        (
            *("cache_seqlens_int32", "cu_seqlens_k", "page_table", "req_to_token", "req_pool_indices"),
            *("max_seq_pages", "seq_lens", "seq_len_delta", "page_size"),
        ),
    ),
    Needed(
        _FA3 + "draft_extend_set_metadata",
        (
            *("cache_seqlens_int32", "cu_seqlens_k", "cu_seqlens_q", "page_table", "req_to_token"),
            *("req_pool_indices", "seq_lens", "extend_seq_lens", "page_size", "full_to_swa_index_mapping"),
        ),
    ),
    Needed(
        _FA3 + "FlashAttentionMetadata", fields=("cache_seqlens_int32", "cu_seqlens_q", "max_seq_len_q", "page_table")
    ),
)
"""What is overridden and read with a CUDA device; without one fa3's module cannot be imported."""

CALLED = (
    Needed(_SRT + "plugins.hook_registry.HookRegistry.register", ("target", "hook", "hook_type")),
    Needed(_SRT + "plugins.hook_registry.HookRegistry.apply_hooks"),
    Needed(_SRT + "plugins.hook_registry.HookRegistry._patched"),
    Needed(_SRT + "runtime_context.get_context"),
    Needed(_SRT + "runtime_context.get_spec"),
    Needed(_SRT + "runtime_context.get_parallel"),
    Needed(_SRT + "runtime_context.RuntimeContext.override", ("source",)),
    Needed(_SRT + "runtime_context.get_exec"),
    Needed(_SRT + "runtime_context.max_speculative_num_draft_tokens"),
    Needed(
        _SRT + "speculative.eagle_info.EagleVerifyInput",
        fields=(
            "draft_token",
            "custom_mask",
            "positions",
            "retrieve_index",
            "retrieve_next_token",
            "retrieve_next_sibling",
            "retrieve_cum_len",
            "spec_steps",
            "topk",
            "draft_token_num",
            "capture_hidden_mode",
            "seq_lens_sum",
            "seq_lens_cpu",
            "draft_probs",
        ),
    ),
    Needed(_WORKER + "EAGLEWorkerV2._stub_skipped_draft_extend", ("self", "batch", "batch_output")),
    Needed("sglang.kernels.ops.memory.common.write_req_to_token_pool_triton"),
    Needed(_SRT + "mem_cache.allocation.assign_req_to_token_pool"),
    Needed(_SRT + "layers.attention.verify_mask.VerifyMask", fields=("buffer", "is_read")),
    Needed(_SRT + "mem_cache.kv_index_translator.KVIndexTranslator.bind_and_verify_backends", ("backends",)),
    Needed(
        _SRT + "layers.attention.base_attn_backend.AttentionBackend",
        fields=("prefill_attention_backend_str", "decode_attention_backend_str"),
    ),
    Needed(_SRT + "runtime_context._ConfigBag.override"),
    Needed(_EXECUTOR + "cuda_graph_config.with_phase", ("config", "phase")),
    Needed(_EXECUTOR + "cuda_graph_config.PhaseConfig", fields=("bs", "backend")),
    Needed(_SRT + "utils.common.get_cuda_graph_batch_size_alignment"),
    Needed(_SRT + "utils.common.get_available_gpu_memory", ("device", "gpu_id")),
    Needed(_SRT + "utils.triton_load_watch.mark_serving_started"),
    Needed(_SRT + "utils.triton_load_watch._serving_started"),
    Needed(_SRT + "arg_groups.serving_hook.ssl_verify_of", ("cfg",)),
    Needed(_SRT + "runtime_context.get_serving"),
    Needed(_SRT + "arg_groups.overrides.resolving_view", ("server_args",)),
    Needed(
        _SRT + "speculative.adaptive_runtime_state.SpecRuntimeState",
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
    Needed(_SRT + "speculative.adaptive_runtime_state.AdaptiveController.__init__", ("worker", "policy")),
    Needed(
        _WORKER + "EAGLEWorkerV2.on_verify_complete_cpu",
        ("num_correct_drafts_per_req", "batch_size"),
        patched="num_draft_tokens",
    ),
    Needed(_WORKER + "EAGLEWorkerV2.activate_step_by_batch", ("batch_size",)),
    Needed(_SRT + "distributed.parallel_state.GroupCoordinator.broadcast_object", ("obj", "src")),
    Needed(_SRT + "distributed.parallel_state.GroupCoordinator", fields=("rank_in_group",)),
    Needed(_STATE + "UpdateRejected"),
    Needed(_SRT + "managers.io_struct.SetInternalStateReq", fields=("server_args",)),
    Needed(_SRT + "managers.tokenizer_manager.TokenizerManager.set_internal_state", ("self", "obj")),
    Needed(_SRT + "environ.envs.SGLANG_ENABLE_OVERLAP_PLAN_STREAM"),
    Needed(_SRT + "environ.envs.SGLANG_ENABLE_ASYNC_ASSERT"),
    Needed(_SRT + "environ.envs.SGLANG_SANITIZE_NAN_LOGITS"),
    Needed(
        _SRT + "sampling.sampling_batch_info.SamplingBatchInfo",
        fields=("is_all_greedy", "acc_additive_penalties", "acc_scaling_penalties", "logit_bias"),
    ),
    Needed(_SRT + "mem_cache.kv_loc_plan.KVLocPlan.__init__", ("seq_lens", "write_virtual")),
    Needed(_SRT + "speculative.eagle_info.EagleVerifyInput", fields=("topk", "kv_loc_plan")),
    Needed(_SRT + "observability.metrics_collector.SchedulerMetricsCollector.__init__", ("labels",)),
    Needed(_SRT + "observability.metrics_collector.SchedulerMetricsCollector._counter_cls"),
    Needed(_SRT + "observability.metrics_collector.SchedulerMetricsCollector._gauge_cls"),
    Needed(
        _SRT + "observability.metrics_collector.SchedulerMetricsCollectorContext",
        fields=("collector", "current_scheduler_metrics_enabled"),
    ),
    Needed(_SRT + "entrypoints.http_server.app"),
    Needed(_SRT + "entrypoints.http_server.get_global_state"),
    Needed(_SRT + "managers.tokenizer_manager.TokenizerManager.auto_create_handle_loop", ("self",)),
    Needed(_SRT + "managers.io_struct.GetInternalStateReq"),
    Needed(_SRT + "managers.io_struct.BaseReq", fields=("rid",)),
    Needed(_SRT + "managers.io_struct.GetInternalStateReqOutput", fields=("internal_state",)),
    Needed(_SRT + "utils.auth.auth_level", ("level",)),
    Needed(_SRT + "utils.auth.AuthLevel.ADMIN_OPTIONAL"),
    Needed(_SRT + "runtime_context.SpawnRanks", fields=("dp_rank",)),
    Needed(
        _SRT + "managers.utils.GenerationBatchResult",
        fields=(
            "speculative_num_draft_tokens",
            "cap_lens",
            "accept_lens",
            "logits_output",
            "next_token_ids",
            "next_draft_input",
            "prepared_draft_extend_inputs",
        ),
    ),
    # Held-back draft extends: see draft_warmth.py, draft_catch_up.py and warmth_setup.py.
    Needed(_WORKER + "EAGLEWorkerV2.last_shared_read_runner"),
    Needed(_SRT + "speculative.eagle_info.EagleDraftInput", fields=("topk_p", "topk_index", "hidden_states")),
    Needed(_SRT + "layers.logits_processor.LogitsProcessorOutput", fields=("next_token_logits", "hidden_states")),
    Needed(
        _SRT + "managers.schedule_batch.ScheduleBatch",
        fields=(
            "reqs",
            "req_to_token_pool",
            "tree_cache",
            "req_pool_indices",
            "req_pool_indices_cpu",
            "seq_lens",
            "seq_lens_cpu",
            "seq_lens_sum",
            "orig_seq_lens",
            "out_cache_loc",
            "multimodal_inputs",
            "sampling_info",
            "has_grammar",
            "return_logprob",
            "forward_mode",
            "spec_info",
        ),
    ),
    Needed(
        _SRT + "managers.schedule_batch.ReqKvInfo",
        fields=("req_pool_idx", "cache_protected_len", "kv_committed_len", "kv_allocated_len"),
    ),
    Needed(_SRT + "managers.schedule_batch.ScheduleBatch.maybe_evict_swa", ("self",)),
    Needed(_SRT + "managers.schedule_batch.ScheduleBatch.cumulate_penalty_output_tokens", ("self",)),
    Needed(_SRT + "mem_cache.allocation_sizing.get_alloc_reserve_per_decode"),
    Needed(_SRT + "mem_cache.allocator.token.TokenToKVPoolAllocator.available_size", ("self",)),
    Needed(_SRT + "mem_cache.base_prefix_cache.BasePrefixCache.evictable_size", ("self",)),
    Needed(_SRT + "mem_cache.memory_pool.ReqToTokenPool.alloc_rows"),
    Needed(_SRT + "environ.Envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"),
)
"""Attributes that the package calls or reads."""

ASKED = (
    Needed(_SRT + "plugins.load_plugins"),
    Needed(_SRT + "server_args.prepare_server_args", ("argv",)),
)
"""Attributes that only the doctor calls; no launch is refused for them."""


def problems(needed: Iterable[Needed] = (*HOOKED, *CALLED)) -> list[str]:
    """Return every mismatch between *needed* and the installed SGLang, as one phrase each."""
    return [problem for entry in needed if (problem := entry.problem()) is not None]


def of_scheduler() -> list[str]:
    """Return the mismatches of what only a scheduler on this machine's devices uses."""
    from sglang.srt.utils import is_cuda

    return problems(ON_CUDA) if is_cuda() else []


def require(found: Sequence[str] | None = None) -> None:
    """Raise ContractError, in one line, for what was *found*, of all that is needed by default."""
    found = problems() if found is None else found
    if found:
        import sglang

        raise ContractError(
            f"sglang-adaptive supports {SUPPORTED}, and this is sglang {sglang.__version__}: {'; '.join(found)}"
        )


def _parameter_names(function: Any) -> set[str]:
    try:
        # Another plugin's wrapper may take *args, **kwargs; functools.wraps leaves the real signature readable.
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def _field_names(cls: Any) -> set[str]:
    if dataclasses.is_dataclass(cls):
        return {field.name for field in dataclasses.fields(cls)}
    return set(getattr(cls, "__annotations__", {}))
