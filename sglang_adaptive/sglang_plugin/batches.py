"""What decides the tokens of a batch."""

from __future__ import annotations

from typing import Any


def is_plainly_greedy(batch: Any, grammar_mask: Any, watermark_state: Any) -> bool:
    """Whether each token of *batch* is the likeliest one of its row of logits, whatever else the requests ask for."""
    from sglang.srt.environ import envs

    info = batch.sampling_info
    between = (info.acc_additive_penalties, info.acc_scaling_penalties, info.logit_bias, grammar_mask, watermark_state)
    return bool(
        info.is_all_greedy
        and not info.has_custom_logit_processor
        and all(part is None for part in between)
        and not envs.SGLANG_SANITIZE_NAN_LOGITS.get()
    )
