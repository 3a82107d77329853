"""SGLang's scheduler: KV slots and lengths before a round, results after it, and what happens to requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sglang_adaptive.sglang_plugin.hooks import SRT, Process, around, needs, pass_reports_on, report_hooks, to_stages
from sglang_adaptive.sglang_plugin.stage import Stage
from sglang_adaptive.sglang_plugin.workers import choice

_RESULTS = SRT + "managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor."
_SYNC = SRT + "managers.scheduler_components.dp_attn.MLPSyncBatchInfo"
_WEIGHTS = SRT + "managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager."


# -- before a round -----------------------------------------------------------------------------------------------

to_stages(Stage.update_running_batch, SRT + "managers.scheduler.Scheduler.update_running_batch", "self batch")
to_stages(Stage.alloc_reserve, SRT + "mem_cache.allocation_sizing.get_alloc_reserve_per_decode")
to_stages(Stage.prepare_for_decode, SRT + "speculative.eagle_utils.eagle_prepare_for_decode", "batch")
to_stages(
    Stage.decode_alloc_lens, SRT + "speculative.eagle_utils.page_aligned_decode_alloc_lens", "reqs reserve page_size"
)
to_stages(Stage.lengths_on_host, SRT + "managers.overlap_utils.FutureMap.resolve_seq_lens_cpu", "self batch")
to_stages(
    Stage.read_relay,
    "sglang.kernels.ops.speculative.gather_spec_extras.gather_spec_extras",
    "indices topk_p_buf topk_index_buf output_tokens_buf hidden_states_buf",
    process=Process.SCHEDULER_CUDA,
)
to_stages(
    Stage.write_relay,
    SRT + "managers.overlap_utils.FutureMap.stash",
    "self future_indices payload",
    process=Process.SCHEDULER_CUDA,
)
# The ranks of attention DP gather rows before each batch.
to_stages(Stage.local_row, _SYNC + "._get_local_tensor", "self")
to_stages(Stage.absent_row, _SYNC + "._get_fallback_tensor", "self")
to_stages(Stage.gathered, _SYNC + ".all_gather", "self")
to_stages(Stage.isolate, SRT + "managers.scheduler.Scheduler._forward_isolation", "self batch overlap")
to_stages(Stage.prepare_prefill, SRT + "managers.schedule_batch.ScheduleBatch.prepare_for_extend", "self")
to_stages(Stage.count_penalties, SRT + "managers.schedule_batch.ScheduleBatch.cumulate_penalty_output_tokens", "self")
to_stages(
    Stage.is_overlap_off, SRT + "managers.scheduler.Scheduler.is_disable_overlap_for_batch", "self batch last_batch"
)


@around(SRT + "speculative.dflash_info_v2.DFlashDraftInputV2.prepare_for_decode", "self batch")
def prepare_block(original: Callable[..., None], draft_input: Any, batch: Any) -> None:
    """Reserve KV slots for the next DFLASH round."""
    from sglang_adaptive.sglang_plugin.workers.dflash import reserve

    reserve(original, draft_input, batch)


around(SRT + "managers.scheduler.decide_needs_cpu_seq_lens", "attn_backends")(choice.needs_lengths_on_host)

# -- after a round ------------------------------------------------------------------------------------------------

to_stages(Stage.resolve, _RESULTS + "_resolve_spec_v2_tokens", "self result batch")
# A prefill; an empty batch while other attention DP ranks go on; a batch that a prefill server has computed.
for _kind in ("prefill", "idle", "prebuilt"):
    to_stages(Stage.interrupt, _RESULTS + f"process_batch_result_{_kind}", "self")
to_stages(Stage.end_of_text, SRT + "managers.schedule_batch.Req._locate_str_stop_finished_len", "self new_accepted_len")
to_stages(Stage.release, SRT + "mem_cache.common.release_kv_cache", "req")
to_stages(Stage.owned_length, SRT + "managers.schedule_batch.Req.owned_kv_len", "self")

# -- beside rounds ------------------------------------------------------------------------------------------------

for _update in ("update_weights_from_disk", "update_weights_from_ipc", "end_weight_update"):
    to_stages(Stage.update_weights, _WEIGHTS + _update, "self recv_req")
to_stages(Stage.flush_cache, SRT + "managers.scheduler.Scheduler.flush_cache", "self")
to_stages(Stage.begin_weight_update, _WEIGHTS + "begin_weight_update", "self recv_req")


@around(SRT + "managers.scheduler.Scheduler.get_init_info", "self")
def scheduler_ready(original: Callable[..., dict[str, Any]], scheduler: Any) -> dict[str, Any]:
    """Tell the launcher that this scheduler has its hooks, and which runtime states it built."""
    return report_hooks(original(scheduler))


@around(SRT + "managers.data_parallel_controller.aggregate_scheduler_startup_times", "startup_times")
def replicas_ready(original: Callable[..., dict[str, Any]], startup_times: Iterable[Any]) -> dict[str, Any]:
    """Summarize the start-up of replicas; the launcher gets nothing else from their schedulers."""
    startup_times = list(startup_times)
    return pass_reports_on(original(startup_times), startup_times)


needs(
    """
    managers.scheduler_components.dp_attn.MLPSyncBatchInfo: num_tokens is_extend_in_batch tp0_info_cpu
    environ.envs.SGLANG_SCHEDULER_SKIP_ALL_GATHER
    environ.envs.SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION
    sampling.penaltylib.BatchedPenalizerOrchestrator: penalizers is_required device
    sampling.penaltylib.BatchedFrequencyPenalizer: cumulated_frequency_penalties frequency_penalties
    sampling.penaltylib.BatchedPresencePenalizer: cumulated_presence_penalties presence_penalties
    sampling.penaltylib.BatchedRepetitionPenalizer: cumulated_repetition_penalties repetition_penalties
    sampling.penaltylib.BatchedMinNewTokensPenalizer: min_new_tokens stop_token_penalties len_output_tokens
    sampling.penaltylib.repetition_penalty.apply_scaling_penalties: logits scaling_penalties
    managers.schedule_batch.Req.update_finish_state: self new_accepted_len
    managers.schedule_batch.Req: origin_input_ids output_ids output_ids_through_stop finished sampling_params rid
        finished_reason to_finish grammar custom_logit_processor lora_id session multimodal_inputs input_embeds
        origin_input_ids_unpadded finished_len extra_key cache_salt eos_token_ids tokenizer
    sampling.sampling_params.SamplingParams: top_k beam_width json_schema regex ebnf structural_tag custom_params
        watermark min_new_tokens ignore_eos stop_token_ids logit_bias frequency_penalty presence_penalty
        repetition_penalty
    managers.schedule_batch.FINISH_ABORT: message
    managers.scheduler.Scheduler.is_fully_idle: self
    managers.overlap_utils.FutureMap: need_topk need_hidden_states output_tokens_buf topk_index_buf topk_p_buf
        hidden_states_buf
    managers.scheduler.Scheduler.record_batch_in_overlap: self batch
    sampling.sampling_batch_info.SamplingBatchInfo.copy_for_forward: self
    mem_cache.allocator.paged.PagedTokenToKVPoolAllocator.available_size: self
    mem_cache.allocator.token.TokenToKVPoolAllocator.available_size: self
    mem_cache.base_prefix_cache.BasePrefixCache.evictable_size: self
    mem_cache.base_prefix_cache.BasePrefixCache.supports_prefix_sharing: self
    managers.schedule_batch.ScheduleBatch.maybe_evict_swa: self
    managers.schedule_batch.ScheduleBatch: reqs req_to_token_pool tree_cache req_pool_indices req_pool_indices_cpu
        seq_lens seq_lens_cpu seq_lens_sum orig_seq_lens out_cache_loc multimodal_inputs sampling_info has_grammar
        return_logprob forward_mode spec_info input_ids chunked_req
    managers.schedule_batch.ReqKvInfo: req_pool_idx cache_protected_len kv_committed_len kv_allocated_len
    runtime_context.get_parallel
    distributed.parallel_state.GroupCoordinator.broadcast_object: obj src
    distributed.parallel_state.GroupCoordinator.all_gather_object: obj
    distributed.parallel_state.GroupCoordinator: rank_in_group world_size cpu_group
    """
)
