"""One number of steps a round for all ranks of attention DP, agreed in the gather that SGLang makes before a round.

``SGLANG_ADAPTIVE_ATTENTION_DP=0`` turns it off. May import hooking, scheduler and runtime.
"""

from __future__ import annotations

from sglang_adaptive.sglang_plugin.hooking.hook import RESULTS, SRT, WORKER, Hook, Need

_SYNC = SRT + "managers.scheduler_components.dp_attn.MLPSyncBatchInfo"

HOOKS = (
    Hook(WORKER + "EAGLEWorkerV2.init_cuda_graphs", "after", "attention_dp.gather:install", ("self",)),
    Hook(_SYNC + "._get_local_tensor", "after", "attention_dp.gather:add_ballot", ("self",)),
    Hook(_SYNC + "._get_fallback_tensor", "after", "attention_dp.gather:add_silence", ("self",)),
    Hook(_SYNC + ".all_gather", "after", "attention_dp.gather:count", ("self",)),
    Hook(WORKER + "EAGLEWorkerV2.forward_batch_generation", "after", "attention_dp.gather:note_round", ("self",)),
    *(
        Hook(RESULTS + f"process_batch_result_{batch}", "before", "attention_dp.gather:interrupt_clock", ("self",))
        for batch in ("idle", "prebuilt")
    ),
)

NEEDS = (
    Need(_SYNC, fields=("num_tokens", "is_extend_in_batch", "tp0_info_cpu")),
    Need(SRT + "environ.envs.SGLANG_SCHEDULER_SKIP_ALL_GATHER"),
    Need(SRT + "environ.envs.SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION"),
)
