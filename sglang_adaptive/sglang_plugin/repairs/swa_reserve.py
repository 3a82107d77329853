"""Reserves sliding-window slots for the most steps, not for the launch steps.

SGLang 0.5.23 derives other sizes from the most draft tokens, but this one from those at launch. So with more steps the
slots that the scheduler expects can be missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def at_the_widest(original: Callable[..., int], *args: Any, **kwargs: Any) -> int:
    """Around pool_configurator.compute_swa_request_cap: let it read the most steps."""
    from sglang.srt.runtime_context import get_spec, max_speculative_num_draft_tokens

    spec = get_spec()
    widest = max_speculative_num_draft_tokens() if spec.speculative_adaptive else None
    if widest is None:
        return original(*args, **kwargs)
    with spec.override(speculative_num_draft_tokens=widest, speculative_num_steps=widest - 1):
        return original(*args, **kwargs)
