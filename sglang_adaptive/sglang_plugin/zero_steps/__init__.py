"""Rounds of zero steps that cost about a plain decode, after which drafting can resume.

May import hooking, scheduler, policy and runtime.
"""

from __future__ import annotations

from sglang_adaptive.sglang_plugin.hooking.hook import SRT, WORKER, Hook, Need, Process

_BACKENDS = (
    SRT + "layers.attention.triton_backend.TritonAttnBackend.",
    SRT + "layers.attention.flashinfer_backend.FlashInferAttnBackend.",
)

HOOKS = (
    Hook(
        WORKER + "EAGLEWorkerV2._build_trivial_verify_input",
        "around",
        "zero_steps.inputs:verify_input",
        ("self", "batch"),
    ),
    Hook(WORKER + "EAGLEWorkerV2.init_cuda_graphs", "after", "zero_steps.extend_hooks:install", ("self",)),
    Hook(
        WORKER + "EAGLEWorkerV2._build_trivial_verify_input",
        "before",
        "zero_steps.extend_hooks:watch_reads",
        ("self", "batch"),
    ),
    Hook(
        WORKER + "EagleDraftWorker._draft_extend_for_decode",
        "around",
        "zero_steps.extend_hooks:extend_for_decode",
        ("self", "batch", "batch_result", "kv_loc_plan"),
    ),
    Hook(WORKER + "EagleDraftWorker.draft", "before", "zero_steps.extend_hooks:catch_up", ("self", "batch")),
    Hook(
        SRT + "managers.schedule_batch.Req.owned_kv_len",
        "after",
        "zero_steps.extend_hooks:owned_length",
        ("self",),
    ),
    Hook(
        SRT + "speculative.eagle_worker_common.eagle_sample",
        "around",
        "zero_steps.choice:sample",
        ("verify_input", "batch", "logits_output", "grammar_mask", "watermark_state"),
        process=Process.SCHEDULER_CUDA,
    ),
    *(
        Hook(
            backend + maker,
            "around",
            "zero_steps.decode_kernel:init_metadata",
            ("self", "forward_batch"),
            process=Process.SCHEDULER_CUDA,
        )
        for backend in _BACKENDS
        for maker in ("init_forward_metadata", "init_forward_metadata_out_graph")
    ),
    *(
        Hook(
            backend + "forward_extend",
            "around",
            "zero_steps.decode_kernel:forward_extend",
            ("self", "q", "k", "v", "layer", "forward_batch"),
            process=Process.SCHEDULER_CUDA,
        )
        for backend in _BACKENDS
    ),
)

NEEDS = (
    Need(
        SRT + "speculative.eagle_info.EagleVerifyInput",
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
    Need(WORKER + "EAGLEWorkerV2._stub_skipped_draft_extend", ("self", "batch", "batch_output")),
    Need(SRT + "layers.attention.verify_mask.VerifyMask", fields=("buffer", "is_read")),
    *(Need(backend + "forward_decode", ("self", "q", "k", "v", "layer", "forward_batch")) for backend in _BACKENDS),
    Need(SRT + "environ.envs.SGLANG_ENABLE_ASYNC_ASSERT"),
    Need(SRT + "environ.envs.SGLANG_SANITIZE_NAN_LOGITS"),
    Need(
        SRT + "sampling.sampling_batch_info.SamplingBatchInfo",
        fields=("is_all_greedy", "acc_additive_penalties", "acc_scaling_penalties", "logit_bias"),
    ),
    Need(SRT + "mem_cache.kv_loc_plan.KVLocPlan.__init__", ("seq_lens", "write_virtual")),
    Need(SRT + "speculative.eagle_info.EagleVerifyInput", fields=("topk", "kv_loc_plan")),
    Need(
        SRT + "managers.utils.GenerationBatchResult",
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
    Need(WORKER + "EAGLEWorkerV2.last_shared_read_runner"),
    Need(SRT + "speculative.eagle_info.EagleDraftInput", fields=("topk_p", "topk_index", "hidden_states")),
    Need(SRT + "layers.logits_processor.LogitsProcessorOutput", fields=("next_token_logits", "hidden_states")),
    Need(
        SRT + "managers.schedule_batch.ScheduleBatch",
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
    Need(
        SRT + "managers.schedule_batch.ReqKvInfo",
        fields=("req_pool_idx", "cache_protected_len", "kv_committed_len", "kv_allocated_len"),
    ),
    Need(SRT + "environ.Envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"),
    Need(SRT + "speculative.spec_info.SpeculativeAlgorithm.is_eagle", ("self",)),
)
