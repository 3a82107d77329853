"""One number of steps per round for all ranks of attention DP, agreed on in SGLang's gather before each batch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang_adaptive.policy.vote import width
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.joint_steps import JointSteps
from sglang_adaptive.sglang_plugin import features
from sglang_adaptive.sglang_plugin.setup import AsIf

logger = logging.getLogger(__name__)

_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN")


def unsupported_reason(original: Callable[..., str | None], server_args: Any) -> str | None:
    """Wrap SGLang's adaptive_unsupported_reason: accept attention DP where it can work, unless it is turned off."""
    from sglang.srt.arg_groups.overrides import resolved_view
    from sglang.srt.environ import envs

    if "attention-dp" in features.turned_off() or resolved_view(server_args).attn_dp_size == 1:
        return original(server_args)
    if (reason := original(AsIf(server_args, attn_dp_size=1))) is not None:
        return reason
    if (server_args.speculative_algorithm or "").upper() not in _ALGORITHMS:
        return f"attention DP is not supported with {server_args.speculative_algorithm}"
    if envs.SGLANG_SCHEDULER_SKIP_ALL_GATHER.get() or resolved_view(server_args).dwdp_size > 1:
        return "attention DP is not supported where ranks skip the gather before a round"
    if resolved_view(server_args).enable_dp_attention_local_control_broadcast:
        return "attention DP is not supported with --enable-dp-attention-local-control-broadcast"
    if envs.SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION.get():
        return "attention DP is not supported with SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION, which always drafts"
    return None


# Extra columns of SGLang's gather carry each rank's ballot, and all ranks count the same rows.
#
# All ranks, even idle ones, run the gather before every batch; with speculation first for prefills, then for decodes.
# The last gather before a round decides its steps. SGLang indexes its own columns from the left.


def joint_steps(controller: AdaptiveController) -> JointSteps | None:
    """Return the `JointSteps` of *controller*, which has all its runtime states; None without attention DP."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    if parallel.attn_dp_size == 1:
        return None
    if parallel.tp_rank == 0:
        ranks = parallel.attn_dp_size
        logger.info("adaptive: before each round the %d ranks of attention DP agree on its steps", ranks)
    return JointSteps(controller, parallel.attn_dp_rank)


def appended(row: Any, columns: list[int]) -> Any:
    """Return *row*, a tensor of one rank, with *columns* appended."""
    import torch

    return torch.cat([row, torch.tensor(columns, device=row.device, dtype=row.dtype)])


def rows(info: Any, ranks: JointSteps) -> list[list[int]]:
    """Return the ballots of all ranks in SGLang's gathered *info*."""
    gathered: list[list[int]] = info.tp0_info_cpu[:, -width(ranks.depths) :].tolist()
    return gathered
