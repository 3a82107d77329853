"""The gather that the ranks of attention DP make before each batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang_adaptive.sglang_plugin.contract import Need
from sglang_adaptive.sglang_plugin.hooks import SRT, event, needs

if TYPE_CHECKING:
    from sglang_adaptive.sglang_plugin.round import Round

_SYNC = SRT + "managers.scheduler_components.dp_attn.MLPSyncBatchInfo"


@event(_SYNC + "._get_local_tensor", "self")
def local_row(now: Round, original: Callable[..., Any], info: Any, *args: Any, **kwargs: Any) -> Any:
    """Build this rank's row of the gather."""
    return now.with_ballot(original(info, *args, **kwargs), info)


@event(_SYNC + "._get_fallback_tensor", "self")
def absent_row(now: Round, original: Callable[..., Any], info: Any, *args: Any, **kwargs: Any) -> Any:
    """Build the row of an absent rank."""
    return now.with_silence(original(info, *args, **kwargs))


@event(_SYNC + ".all_gather", "self")
def gathered(now: Round, original: Callable[..., None], info: Any, *args: Any, **kwargs: Any) -> None:
    """Gather the rows of all ranks; the last gather before a round determines its steps."""
    original(info, *args, **kwargs)
    now.gathered(info)


needs(
    Need(_SYNC, attributes=("num_tokens", "is_extend_in_batch", "tp0_info_cpu")),
    Need(SRT + "environ.envs.SGLANG_SCHEDULER_SKIP_ALL_GATHER"),
    Need(SRT + "environ.envs.SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION"),
)
