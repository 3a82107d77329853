"""Adaptive subclasses of workers that SGLang 0.5.23 runs with fixed steps, one file each.

May import hooking, scheduler, fast_path, policy and runtime.
"""

from __future__ import annotations

from sglang_adaptive.sglang_plugin.hooking.hook import SRT, Hook, Process

_MULTI_LAYER = SRT + "speculative.multi_layer_eagle_worker_v2."

HOOKS = (
    Hook(
        SRT + "arg_groups.speculative_hook._handle_ngram",
        "after",
        "workers.ngram_arguments:steps_by_breadth",
        ("server_args",),
        process=Process.LAUNCHER,
    ),
    Hook(
        SRT + "speculative.spec_info.SpeculativeAlgorithm.create_worker",
        "around",
        "workers.choice:create_worker",
        ("self", "server_args"),
    ),
    Hook(
        SRT + "managers.scheduler.decide_needs_cpu_seq_lens",
        "around",
        "workers.ngram_lengths:needed_on_host",
        ("attn_backends",),
    ),
    Hook(_MULTI_LAYER + "MultiLayerEagleDraftWorker.draft", "around", "workers.multi_layer:draft", ("self", "batch")),
    Hook(
        _MULTI_LAYER + "prepare_for_draft_extend",
        "before",
        "workers.multi_layer:state_width",
        ("draft_extend_input", "batch", "predict", "num_draft_tokens"),
    ),
)
