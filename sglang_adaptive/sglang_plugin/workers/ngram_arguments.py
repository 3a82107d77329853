"""Sets SGLang's ``speculative_num_steps`` for NGRAM.

Adaptive speculation keeps the launch steps of every algorithm in ``speculative_num_steps``. For NGRAM SGLang expects
width / topk there, and reserves topk times steps of KV slots a request.
"""

from __future__ import annotations

from typing import Any


def steps_by_breadth(result: None, server_args: Any) -> None:
    """After SGLang resolved NGRAM's arguments: set its steps to width / topk; the width has the launch steps."""
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

    cfg = resolving_view(server_args)
    if cfg.speculative_adaptive:
        steps = cfg.speculative_num_draft_tokens // cfg.speculative_eagle_topk
        declare_resolution(server_args, "sglang_adaptive", speculative_num_steps=steps)
