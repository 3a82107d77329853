"""SGLang's speculative workers: their start, and a round from the draft to the draft extend."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang_adaptive.sglang_plugin.configuration import configuration
from sglang_adaptive.sglang_plugin.hooks import SRT, WORKER, Process, around, needs, replace, to_stages
from sglang_adaptive.sglang_plugin.stage import Stage
from sglang_adaptive.sglang_plugin.workers import choice

if TYPE_CHECKING:
    from sglang_adaptive.policy.base import AdaptivePolicy
    from sglang_adaptive.sglang_plugin.start.controller import ForWorker

_MULTI_LAYER = SRT + "speculative.multi_layer_eagle_worker_v2."

# -- start-up -----------------------------------------------------------------------------------------------------


around(SRT + "speculative.spec_info.SpeculativeAlgorithm.create_worker", "self server_args")(choice.adaptive_class)


@replace(
    SRT + "speculative.adaptive_spec_params.resolve_candidate_steps_from_config", "cfg_path", process=Process.EVERY
)
def candidate_steps(cfg_path: str | None = None) -> list[int]:
    """Return the steps of the configuration; SGLang sizes its buffers for the last one.

    Lookup rounds have more drafts, but few requests: a batch of the deepest steps needs more room.
    """
    return configuration().candidate_steps


@replace(WORKER + "AdaptiveSpeculativeParams")
def build_policy(initial_steps: int, cfg_path: str | None = None) -> AdaptivePolicy:
    """Build the policy that the configuration names."""
    from sglang_adaptive.sglang_plugin.start.controller import build_policy

    return build_policy(initial_steps, configuration())


@replace(WORKER + "AdaptiveController")
def build_controller(worker: Any, policy: AdaptivePolicy) -> ForWorker:
    """Create this process's `Rounds`, and this package's controller for SGLang's worker."""
    from sglang_adaptive.sglang_plugin.rounds import begin
    from sglang_adaptive.sglang_plugin.start.controller import ForWorker

    return ForWorker(begin(worker, policy).controller)


to_stages(Stage.start, WORKER + "EAGLEWorkerV2.init_cuda_graphs", "self")
to_stages(
    Stage.build_state,
    WORKER + "EAGLEWorkerV2.build_adaptive_runtime_state",
    "self speculative_num_steps speculative_num_draft_tokens cuda_graph_bs",
)

# -- a round ------------------------------------------------------------------------------------------------------

to_stages(Stage.choose_steps, WORKER + "EAGLEWorkerV2.activate_step_by_batch", "self batch_size")
to_stages(Stage.switch, WORKER + "EAGLEWorkerV2.apply_runtime_state", "self state")
to_stages(Stage.launch, WORKER + "EAGLEWorkerV2.forward_batch_generation", "self batch")
to_stages(
    Stage.draft_prefill,
    WORKER + "EagleDraftWorker._draft_extend_for_prefill",
    "self batch target_hidden_states next_token_ids mm_input_embeds kv_loc_plan",
)
to_stages(Stage.zero_step_input, WORKER + "EAGLEWorkerV2._build_trivial_verify_input", "self batch")
to_stages(Stage.draft, WORKER + "EagleDraftWorker.draft", "self batch")
to_stages(Stage.verify, WORKER + "EAGLEWorkerV2.verify", "self batch pp_proxy_tensors grammar_barrier")
to_stages(
    Stage.sample,
    SRT + "speculative.eagle_utils.eagle_sample",
    "verify_input batch logits_output grammar_mask watermark_state",
)
to_stages(
    Stage.draft_extend, WORKER + "EagleDraftWorker._draft_extend_for_decode", "self batch batch_result kv_loc_plan"
)
to_stages(Stage.verified, WORKER + "EAGLEWorkerV2.on_verify_complete_cpu", "num_correct_drafts_per_req batch_size")

# -- multi-layer EAGLE --------------------------------------------------------------------------------------------


@around(_MULTI_LAYER + "MultiLayerEagleDraftWorker.draft", "self batch")
def draft_of_layers(original: Callable[..., Any], drafter: Any, batch: Any) -> Any:
    """Verify only the first drafts, as many as the round has steps."""
    from sglang_adaptive.sglang_plugin.workers.multi_layer import draft

    return draft(original, drafter, batch)


@around(_MULTI_LAYER + "prepare_for_draft_extend", "draft_extend_input batch predict num_draft_tokens")
def prepare_extend_of_layers(
    original: Callable[..., Any], draft_extend_input: Any, batch: Any, predict: Any, num_draft_tokens: int,
    *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    """Set the tokens of the round, not of all layers, because graphs run only batches of the width they captured."""
    draft_extend_input.num_tokens_per_req = num_draft_tokens + draft_extend_input.num_front_tokens
    return original(draft_extend_input, batch, predict, num_draft_tokens, *args, **kwargs)


needs(
    """
    runtime_context.get_spec
    runtime_context.get_context
    runtime_context.RuntimeContext.override: source
    runtime_context.RuntimeContext: _overrides_log
    runtime_context.max_speculative_num_draft_tokens
    speculative.adaptive_runtime_state.SpecRuntimeState: speculative_num_steps speculative_num_draft_tokens
        draft_attn_backend cuda_graph_runner target_attn_backend target_graph_runner draft_extend_attn_backend
        cuda_graph_runner_for_draft_extend
    speculative.adaptive_runtime_state.AdaptiveController.__init__: worker policy
    speculative.eagle_worker_v2.EAGLEWorkerV2: _draft_worker _target_worker
    speculative.eagle_worker_v2.EAGLEWorkerV2._override_worker_state: self speculative_num_steps
        speculative_num_draft_tokens cuda_graph_bs
    speculative.eagle_worker_v2.EAGLEWorkerV2._stub_skipped_draft_extend: self batch batch_output
    speculative.eagle_worker_v2.EagleDraftWorker.init_attention_backend: self
    speculative.eagle_worker_v2.EagleDraftWorker._capture_cuda_graphs: self
    speculative.multi_layer_eagle_worker_v2.MultiLayerEagleDraftWorker._rebuild_topk1_chain_buffers
    layers.moe.utils.speculative_moe_backend_context
    layers.moe.utils.speculative_moe_a2a_backend_context
    speculative.spec_info.SpeculativeAlgorithm.is_eagle: self
    speculative.dflash_worker_v2.DFlashWorkerV2: block_size speculative_num_draft_tokens draft_model
        draft_model_runner _target_worker _draft_sampler _draft_block_ids_buf _draft_block_positions_buf
        _draft_block_tokens_buf _draft_block_end_buf _draft_verify_out_cache_loc_buf _draft_seq_lens_cpu_buf
        _accept_len_buf _commit_lens_bufs _bonus_id_bufs _out_tokens_bufs _new_seq_lens_bufs
        _accept_bonus_buffer_cap _accept_bonus_buffer_slot _block_pos_offsets _draft_block_spec_info selector
        _draft_probs_buf
    speculative.dflash_worker_v2.DFlashWorkerV2._propose_selector_block: self bs anchor_token_ids
    speculative.dflash_worker_v2._SelectorDraftSampler: temperatures
    speculative.dflash_worker_v2.DFlashWorkerV2._maybe_build_draft_sampler: self
    speculative.dflash_worker_v2.DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc: target_hidden cache_loc
        positions
    speculative.draft_worker_common.build_block_pos_offsets: length device
    speculative.draft_worker_common.make_draft_block_spec_info: draft_token_num device
    speculative.draft_worker_common.make_draft_sampler_capture_hook: draft_sampler
    speculative.dflash_utils.parse_dflash_draft_config: draft_hf_config
    environ.Envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND
    speculative.eagle_info.EagleVerifyInput: draft_token custom_mask positions retrieve_index retrieve_next_token
        retrieve_next_sibling retrieve_cum_len spec_steps topk draft_token_num capture_hidden_mode seq_lens_sum
        seq_lens_cpu draft_probs prepared_out_cache_loc
    speculative.eagle_info.EagleDraftInput: topk_p topk_index hidden_states
    layers.logits_processor.LogitsProcessorOutput: next_token_logits hidden_states
    managers.utils.GenerationBatchResult: speculative_num_draft_tokens cap_lens accept_lens logits_output
        next_token_ids next_draft_input prepared_draft_extend_inputs
    speculative.eagle_worker_common.prepare_verify_commit_outputs: predict accept_index accept_lens seq_lens
        num_draft_tokens
    speculative.eagle_worker_v2.EagleDraftWorker: hot_token_id plan_stream seed_dsa_topk_from_draft_extend
    mem_cache.kv_index_translator.KVIndexTranslator.space: self kind
    layers.attention.verify_mask.VerifyMask: buffer is_read
    environ.envs.SGLANG_ENABLE_ASYNC_ASSERT
    environ.envs.SGLANG_SANITIZE_NAN_LOGITS
    environ.envs.SGLANG_SIMULATE_ACC_LEN
    sampling.sampling_batch_info.SamplingBatchInfo: is_all_greedy acc_additive_penalties acc_scaling_penalties
        logit_bias temperatures top_ps top_ks min_ps sampling_seed grammar_mask penalizer_orchestrator
        has_custom_logit_processor custom_logit_processor custom_params has_watermark_candidates vocab_size
    sampling.sampling_batch_info.ProcessorEntry: processor rows indices
    layers.sampler.Sampler.forward: logits_output sampling_info return_logprob top_logprobs_nums token_ids_logprobs
        positions
    layers.sampler.Sampler._preprocess_logits: logits sampling_info
    model_executor.model_runner.ModelRunner: sampler prefill_cuda_graph_runner
    sglang.kernels.ops.speculative.cache_locs.assign_extend_cache_locs_uniform_func: req_pool_indices req_to_token
        start_offset batch_size draft_token_num device
    speculative.eagle_utils.verify_tree_greedy_func: predicts accept_index accept_token_num candidates target_predict
        topk
    """
)
needs("speculative.eagle_worker_v2.EAGLEWorkerV2.on_verify_complete_cpu", patched="num_draft_tokens")
needs(
    """
    speculative.spec_utils.draft_tp_context: layout
    speculative.spec_info.SpeculativeAlgorithm.get_platform_worker_cls: self
    """,
    since="0.5.23",
)
needs(
    """
    speculative.ngram_worker.NGRAMWorker._init_preallocated_tensors
    speculative.ngram_worker._is_cpu
    speculative.ngram_worker.NGRAMWorker.clear_cache_pool: self
    speculative.ngram_worker.NGRAMWorker: ngram_corpus max_trie_depth
    speculative.cpp_ngram.ngram_corpus.NgramCorpus.batch_put: self batch_tokens
    """,
    on_cuda=True,
)
needs("speculative.ngram_worker.reconstruct_indices_from_tree_mask_func", on_cuda=True, since="0.5.23")
