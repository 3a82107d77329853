"""Which SGLang functions are hooked, in which process, and whether the hooks landed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sglang_adaptive.sglang_plugin.contract import SUPPORTED, ContractError


@dataclass(frozen=True, slots=True)
class Hook:
    """A function of this package put before, after, around or in the place of one of SGLang's."""

    target: str
    kind: str
    """"before", "after", "around" or "replace": the values of SGLang's HookType."""

    where: str
    """The function, as ``module:name`` below this package; imported when the hook is added."""

    def load(self) -> Callable[..., Any]:
        """Import and return the function or class."""
        from importlib import import_module

        module, name = self.where.split(":")
        function: Callable[..., Any] = getattr(import_module(f"sglang_adaptive.sglang_plugin.{module}"), name)
        return function


_SRT = "sglang.srt."
_WORKER = _SRT + "speculative.eagle_worker_v2."
_EXECUTOR = _SRT + "model_executor."
_COMPONENTS = _SRT + "managers.scheduler_components."
_RESULTS = _COMPONENTS + "batch_result_processor.SchedulerBatchResultProcessor."
_STATE = _COMPONENTS + "internal_state.SchedulerInternalStateController."
_REPORTER = _COMPONENTS + "metrics_reporter.SchedulerMetricsReporter."

DOORS = (
    Hook(_SRT + "server_args.ServerArgs.from_cli_args", "around", "activation:from_cli_args"),
    Hook(_SRT + "server_args.ServerArgs.resolve_once", "around", "activation:resolve_once"),
)
"""The launcher's entrances; pass-through unless adaptive speculation is asked for."""

EVERY_PROCESS = (
    Hook(
        _SRT + "speculative.adaptive_spec_params.resolve_candidate_steps_from_config",
        "replace",
        "policies:resolve_candidate_steps",
    ),
)
"""SGLang sizes its buffers from the deepest candidate wherever it publishes its configuration."""

LAUNCHER = (
    *EVERY_PROCESS,
    Hook(_SRT + "speculative.adaptive_spec_params.adaptive_unsupported_reason", "around", "activation:note_reason"),
    Hook(
        _SRT + "managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics",
        "after",
        "proposed_drafts:correct_request_metrics",
    ),
    Hook(_SRT + "entrypoints.engine._wait_for_scheduler_ready", "after", "landed:require_in_schedulers"),
    Hook(_SRT + "entrypoints.http_server._setup_and_run_http_server", "before", "admin_route:install"),
    Hook(_SRT + "entrypoints.http_server._wait_and_warmup", "around", "warm_up:wait_and_warm_up"),
    Hook(_SRT + "entrypoints.http_server._setup_and_run_http_server", "before", "page.routes:install"),
    Hook(_SRT + "utils.auth.add_api_key_middleware", "after", "page.routes:prompt_for_key"),
)

SCHEDULER = (
    Hook(_WORKER + "AdaptiveSpeculativeParams", "replace", "policies:build_policy"),
    Hook(_WORKER + "AdaptiveController", "replace", "worker:build_controller"),
    Hook(_WORKER + "SpecRuntimeState", "replace", "worker:SpecRuntimeState"),
    Hook(_WORKER + "EAGLEWorkerV2.build_adaptive_runtime_state", "around", "graph_sizes:build"),
    Hook(
        _EXECUTOR + "runner_backend.full_cuda_graph_backend.FullCudaGraphBackend.capture_one",
        "around",
        "further_captures:capture_one",
    ),
    Hook(
        _EXECUTOR + "runner_backend.full_cuda_graph_backend.FullCudaGraphBackend.capture_one",
        "around",
        "shared_hidden_states:capture_one",
    ),
    Hook(_SRT + "layers.logits_processor.pack_aux_hidden_states", "around", "shared_hidden_states:join"),
    Hook(_EXECUTOR + "runner.decode_cuda_graph_runner.freeze_gc", "around", "further_captures:freeze_gc"),
    Hook(
        _EXECUTOR + "runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.capture",
        "before",
        "shared_page_tables:share",
    ),
    Hook(_WORKER + "EAGLEWorkerV2._build_trivial_verify_input", "around", "zero_step_inputs:verify_input"),
    Hook(_WORKER + "EAGLEWorkerV2._build_trivial_verify_input", "after", "zero_step_sampling:add_draft_probs"),
    Hook(_WORKER + "EAGLEWorkerV2.apply_runtime_state", "after", "worker:compact_override_log"),
    Hook(_EXECUTOR + "model_runner.ModelRunner._get_attention_backend", "after", "target_backends:finish"),
    Hook(_EXECUTOR + "pool_configurator.compute_swa_request_cap", "around", "swa_reserve:at_the_widest"),
    Hook(_WORKER + "EAGLEWorkerV2.init_cuda_graphs", "before", "kernel_variants:ignore_alignment"),
    Hook("sglang.kernels.ops.memory.small_copy.try_small_copy", "around", "kernel_variants:copy_from_aligned"),
    Hook(_WORKER + "EAGLEWorkerV2.init_cuda_graphs", "after", "draft_warmth:install"),
    Hook(_WORKER + "EAGLEWorkerV2.init_cuda_graphs", "after", "reserve_ahead:install"),
    Hook(_WORKER + "EAGLEWorkerV2._build_trivial_verify_input", "before", "draft_warmth:watch_reads"),
    Hook(_WORKER + "EagleDraftWorker._draft_extend_for_decode", "around", "draft_warmth:extend_for_decode"),
    Hook(_WORKER + "EagleDraftWorker.draft", "before", "draft_warmth:catch_up"),
    Hook(_SRT + "managers.schedule_batch.Req.owned_kv_len", "after", "draft_warmth:owned_length"),
    Hook(_SRT + "speculative.eagle_utils.eagle_prepare_for_decode", "around", "reserve_ahead:prepare_for_decode"),
    Hook(_SRT + "speculative.eagle_utils.page_aligned_decode_alloc_lens", "around", "reserve_ahead:decode_alloc_lens"),
    Hook(_RESULTS + "_resolve_spec_v2_tokens", "before", "worker:announce_result"),
    Hook(_RESULTS + "process_batch_result_prefill", "before", "worker:interrupt_clock"),
    Hook(_WORKER + "EAGLEWorkerV2._forward_prefill_batch", "before", "worker:interrupt_for_prefill"),
    Hook(_WORKER + "EAGLEWorkerV2._forward_dp_spec_prefill_coordination", "before", "worker:interrupt_for_prefill"),
    Hook(_REPORTER + "report_decode_stats", "around", "proposed_drafts:report_decode_stats"),
    Hook(_SRT + "managers.scheduler.Scheduler.init_metrics_reporter", "after", "metrics:attach"),
    Hook(_SRT + "observability.metrics_collector.SchedulerMetricsCollector.log_stats", "after", "metrics:update"),
    Hook(_STATE + "_add_speculative", "after", "server_info:add_adaptive"),
    Hook(_STATE + "get_internal_state", "around", "server_info:answer_look"),
    Hook(_STATE + "set_internal_state", "before", "reconfigure:unpack"),
    Hook(_STATE + "_update_handlers", "after", "server_info:add_update_handlers"),
    Hook(_SRT + "managers.scheduler.Scheduler.get_init_info", "after", "landed:report"),
    Hook(_SRT + "managers.data_parallel_controller.DataParallelController.get_init_info", "after", "landed:pass_on"),
)

_FA3 = _SRT + "layers.attention.flashattention_backend."

ON_CUDA = (
    Hook(_SRT + "speculative.eagle_worker_common.eagle_sample", "around", "zero_step_choice:sample"),
    Hook(_FA3 + "FlashAttentionBackend.forward_extend", "around", "verify_schedule:forward_extend"),
    Hook(_FA3 + "flash_attn_with_kvcache", "around", "verify_schedule:flash_attn_with_kvcache"),
    Hook(_FA3 + "FlashAttentionBackend.forward_extend", "around", "queries_in_place:forward"),
    Hook(_FA3 + "FlashAttentionBackend.forward_decode", "around", "queries_in_place:forward"),
    Hook(_FA3 + "FlashAttentionBackend.init_forward_metadata_out_graph", "around", "extend_metadata:out_graph"),
    Hook(
        _SRT + "speculative.eagle_draft_extend_cuda_graph_runner.EAGLEDraftExtendCudaGraphRunner.execute",
        "around",
        "extend_metadata:execute",
    ),
    Hook(_FA3 + "normal_decode_set_metadata", "around", "length_kernel:normal_decode_set_metadata"),
    Hook(_FA3 + "draft_extend_set_metadata", "around", "length_kernel:draft_extend_set_metadata"),
)
"""More for a scheduler with a CUDA device: without one fa3's module cannot be imported, and no kernel of ours runs."""

PLAN_STREAM = (
    Hook(
        _SRT + "layers.attention.base_attn_backend.AttentionBackend.update_verify_buffers_to_fill_after_draft",
        "around",
        "plan_stream:nothing_to_correct",
    ),
)
"""More for a scheduler, where SGLang's plan stream is on."""

EARLY_PLAN = (
    Hook(_WORKER + "get_plan_stream", "replace", "early_plan:no_stream"),
    Hook(_WORKER + "prepare_for_draft", "after", "early_plan:note_draft"),
    Hook(_SRT + "speculative.eagle_worker_common.eagle_prepare_for_verify", "around", "early_plan:prepare_for_verify"),
    Hook(
        _SRT + "model_executor.runner_utils.buffers.DecodeInputBuffers.share_buffers", "around", "early_plan:keep_apart"
    ),
)
"""More for a scheduler, where a verify is to be planned while its draft runs."""


def of_scheduler() -> tuple[Hook, ...]:
    """Return the hooks that this process, a scheduler, is asked to have by its environment."""
    from sglang.srt.utils import is_cuda

    from sglang_adaptive.sglang_plugin import plan_stream

    on_cuda = ON_CUDA if is_cuda() else ()
    on_stream = PLAN_STREAM if plan_stream.asked() else ()
    return (*SCHEDULER, *on_cuda, *on_stream, *(EARLY_PLAN if plan_stream.early() else ()))


def add(hooks: Iterable[Hook]) -> None:
    """Register *hooks* with SGLang, which applies them once every plugin has registered its own."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for hook in hooks:
        HookRegistry.register(hook.target, hook.load(), HookType(hook.kind))


def add_and_apply(hooks: Iterable[Hook]) -> None:
    """Register *hooks* and apply them now, once a process; used after SGLang's own pass over the plugins.

    Raises ContractError when one does not land.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    wanted = tuple(hooks)
    add(hook for hook in wanted if hook.load() not in _registered(hook.target))
    HookRegistry.apply_hooks()
    require_landed(wanted)


def require_landed(hooks: Iterable[Hook]) -> None:
    """Raise ContractError unless every one of *hooks* is applied in this process."""
    lost = [hook.target for hook in hooks if not _landed(hook)]
    if lost:
        raise ContractError(f"these hooks did not land on {SUPPORTED}: {', '.join(lost)}; see the log above")


def _registered(target: str) -> list[Any]:
    from sglang.srt.plugins.hook_registry import HookRegistry

    return [function for _, function, _ in HookRegistry._hooks.get(target, ())]


def _landed(hook: Hook) -> bool:
    from sglang.srt.plugins.hook_registry import HookRegistry

    return hook.target in HookRegistry._patched and hook.load() in _registered(hook.target)
