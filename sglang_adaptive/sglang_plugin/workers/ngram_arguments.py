"""What SGLang's arguments say of NGRAM's widths.

Adaptive speculation gives every algorithm its launch depth in ``speculative_num_steps``. For NGRAM SGLang means another
thing by it, width over breadth, and reserves breadth times steps of KV slots a request.
"""

from __future__ import annotations

from typing import Any


def steps_by_breadth(result: None, server_args: Any) -> None:
    """After SGLang resolved NGRAM's arguments: leave the launch depth to the width, steps + 1, alone."""
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

    cfg = resolving_view(server_args)
    if cfg.speculative_adaptive:
        steps = cfg.speculative_num_draft_tokens // cfg.speculative_eagle_topk
        declare_resolution(server_args, "sglang_adaptive", speculative_num_steps=steps)
