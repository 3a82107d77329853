"""Verifies the drafts of a batch that are most likely right, so that requests verify unequal numbers of them.

May import hooking, policy, runtime and scheduler. All hooks are added only where SGLANG_ADAPTIVE_VERIFY_BUDGET is set:
by the launcher where the configuration says ``"verify_budget": true``, or by hand, for tests.

A round, with `width` = steps + 1 tokens of each of `requests`:

1. The draft runs all steps for all requests. `hooks.draft_forward` keeps the chance that it gave each token.
2. Where the policy has chosen a budget for the round, `ranking` chooses how many drafts of each request to verify,
   `requests * budget` in all. The host knows that sum, so that nothing waits for the device.
3. `hooks.prepare_for_verify` gives the target a packed copy of SGLang's verify input: token ids, positions and KV
   slots, and SGLang's own `RaggedVerifyLayout`, with which DSPARK hands attention backends unequal query lengths.
   On fa3 the pass runs in the graph of `budget` steps (`target_graphs`), and the graphs of the draft return chances
   too (`chances`).
4. `hooks.sample` spreads logits and hidden states back before anything reads them.
5. `looks` sends a few numbers to the host with the round's result: what the policy learns budgets from.

SGLang's own verify input stays a rectangle [requests, width], and with it draft tokens, grammar masks, `predict`,
logprobs, hidden states and the draft extend's window of slots. An absent draft is rejected by its link: the chain of
`retrieve_next_token` ends at the last verified token. Greedy and sampled acceptance walk these links on all devices,
and so do grammars; the token behind the chain is then drawn from the target's whole distribution. So what is written
does not depend on the ranking. Rejection sampling walks no links, and is refused. The target does not write the KV
slot of an absent draft; no accepted token lies there, so the next round writes it before anybody reads it.
"""

from __future__ import annotations

from sglang_adaptive.sglang_plugin.hooking.hook import EXECUTOR, FA3, SRT, WORKER, Hook, Need, Process

_PROCESS = Process.SCHEDULER_VERIFY_BUDGET
_DRAFT_GRAPHS = SRT + "speculative.eagle_draft_cuda_graph_runner.EAGLEDraftCudaGraphRunner."
_VERIFY = SRT + "speculative.eagle_worker_common."

HOOKS = (
    Hook(WORKER + "EAGLEWorkerV2.init_cuda_graphs", "after", "verify_budget.hooks:install", ("self",), _PROCESS),
    Hook(
        EXECUTOR + "model_runner.ModelRunner.forward",
        "after",
        "verify_budget.hooks:note_output",
        ("self", "forward_batch"),
        _PROCESS,
    ),
    Hook(
        WORKER + "EagleDraftWorker.draft_forward",
        "around",
        "verify_budget.hooks:draft_forward",
        ("self", "forward_batch"),
        _PROCESS,
    ),
    Hook(
        _DRAFT_GRAPHS + "capture_one_shape",
        "around",
        "verify_budget.hooks:capture_draft",
        ("self",),
        _PROCESS,
    ),
    Hook(
        _DRAFT_GRAPHS + "execute",
        "after",
        "verify_budget.hooks:draft_replayed",
        ("self", "forward_batch"),
        _PROCESS,
    ),
    Hook(
        SRT + "speculative.eagle_draft_extend_cuda_graph_runner.EAGLEDraftExtendCudaGraphRunner.execute",
        "after",
        "verify_budget.hooks:extend_replayed",
        ("self",),
        _PROCESS,
    ),
    Hook(
        FA3 + "FlashAttentionBackend._bind_metadata_buffers",
        "after",
        "verify_budget.hooks:bind_metadata",
        ("self", "bs", "num_tokens", "encoder_lens", "forward_mode"),
        Process.SCHEDULER_CUDA_VERIFY_BUDGET,
    ),
    Hook(
        WORKER + "EagleDraftWorker._draft_extend_for_decode",
        "around",
        "verify_budget.hooks:extend_for_decode",
        ("self", "batch", "batch_result"),
        _PROCESS,
    ),
    Hook(
        _VERIFY + "eagle_prepare_for_verify",
        "around",
        "verify_budget.hooks:prepare_for_verify",
        ("verify_input", "req_to_token_pool", "batch", "target_worker"),
        _PROCESS,
    ),
    Hook(
        _VERIFY + "eagle_sample",
        "around",
        "verify_budget.hooks:sample",
        ("verify_input", "batch", "logits_output", "grammar_mask", "watermark_state"),
        _PROCESS,
    ),
)

NEEDS = (
    Need(
        SRT + "speculative.eagle_info.EagleVerifyInput",
        fields=(
            "draft_token",
            "positions",
            "retrieve_next_token",
            "draft_token_num",
            "num_tokens_per_req",
            "prepared_out_cache_loc",
            "kv_loc_plan",
        ),
    ),
    Need(SRT + "speculative.spec_info.SpecInput", fields=("ragged_verify_layout",)),
    Need(
        SRT + "speculative.ragged_verify.RaggedVerifyLayout",
        fields=("verify_lens", "graph_num_tokens", "extend_start_loc", "qo_indptr_device", "total_verify_tokens"),
    ),
    Need(
        "sglang.kernels.ops.speculative.cache_locs.assign_extend_cache_locs_uniform_func",
        ("req_pool_indices", "req_to_token", "start_offset", "batch_size", "draft_token_num", "device"),
    ),
    Need(SRT + "layers.logits_processor.LogitsProcessorOutput", fields=("next_token_logits", "hidden_states")),
    Need(SRT + "speculative.eagle_info.EagleDraftInput", fields=("topk_p",)),
    Need(SRT + "managers.schedule_batch.ScheduleBatch", fields=("input_ids", "out_cache_loc", "spec_info")),
    Need(
        SRT + "speculative.eagle_utils.verify_tree_greedy_func",
        ("predicts", "accept_index", "accept_token_num", "candidates", "target_predict", "topk"),
    ),
    Need(SRT + "environ.envs.SGLANG_SIMULATE_ACC_LEN"),
)
