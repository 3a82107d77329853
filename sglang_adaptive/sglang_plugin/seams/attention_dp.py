"""The gather that the ranks of attention DP make before each batch."""

from __future__ import annotations

from sglang_adaptive.sglang_plugin.contract import Need
from sglang_adaptive.sglang_plugin.hooks import SRT, needs, to_stages
from sglang_adaptive.sglang_plugin.stage import Stage

_SYNC = SRT + "managers.scheduler_components.dp_attn.MLPSyncBatchInfo"


to_stages(Stage.local_row, _SYNC + "._get_local_tensor", "self")
to_stages(Stage.absent_row, _SYNC + "._get_fallback_tensor", "self")
to_stages(Stage.gathered, _SYNC + ".all_gather", "self")

needs(
    Need(_SYNC, attributes=("num_tokens", "is_extend_in_batch", "tp0_info_cpu")),
    Need(SRT + "environ.envs.SGLANG_SCHEDULER_SKIP_ALL_GATHER"),
    Need(SRT + "environ.envs.SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION"),
)
