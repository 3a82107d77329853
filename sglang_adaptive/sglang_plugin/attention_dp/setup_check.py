"""Whether a server with attention DP adapts, and where that cannot work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_adaptive.sglang_plugin import env
from sglang_adaptive.sglang_plugin.arguments_view import AsIf

_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN")


def wanted() -> bool:
    """Return whether the environment leaves it on."""
    return not env.ATTENTION_DP.is_off


def unsupported_reason(original: Callable[..., str | None], server_args: Any) -> str | None:
    """Around SGLang's adaptive_unsupported_reason: accept attention DP where it can work, unless it is turned off."""
    from sglang.srt.arg_groups.overrides import resolved_view
    from sglang.srt.environ import envs

    if not wanted() or resolved_view(server_args).attn_dp_size == 1:
        return original(server_args)
    if (reason := original(AsIf(server_args, attn_dp_size=1))) is not None:
        return reason
    if server_args.speculative_algorithm not in _ALGORITHMS:
        return f"attention DP is not supported with {server_args.speculative_algorithm}"
    if envs.SGLANG_SCHEDULER_SKIP_ALL_GATHER.get() or resolved_view(server_args).dwdp_size > 1:
        return "attention DP is not supported where ranks skip the gather before a round"
    if resolved_view(server_args).enable_dp_attention_local_control_broadcast:
        return "attention DP is not supported with --enable-dp-attention-local-control-broadcast"
    if envs.SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION.get():
        return "attention DP is not supported with SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION, which always drafts"
    return None
