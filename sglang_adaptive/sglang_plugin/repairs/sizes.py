"""Sizes for the most steps what SGLang sizes for the launch steps.

SGLang 0.5.23 derives most sizes from the most draft tokens, but some from those at launch, and rounds of more steps
write more: slots of sliding windows, which the scheduler then expects and which can be missing; DeepSeek-V4's rings of
a request's latest tokens, in which further drafts would overwrite tokens that are still attended to; and buffers of MoE
exchanges. The rings and the exchanges were read, not run: they are on GPUs alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def at_the_widest(original: Callable[..., int], *args: Any, **kwargs: Any) -> int:
    """Return what SGLang's *original* returns, a size, where it reads the most steps as those of the launch."""
    from sglang.srt.runtime_context import get_spec, max_speculative_num_draft_tokens

    spec = get_spec()
    widest = max_speculative_num_draft_tokens() if spec.speculative_adaptive else None
    if widest is None:
        return original(*args, **kwargs)
    with spec.override(speculative_num_draft_tokens=widest, speculative_num_steps=widest - 1):
        return original(*args, **kwargs)
