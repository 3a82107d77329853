"""Sliding-window slots reserved for the widest verify pass, not for the one at launch.

The other sizes that SGLang 0.5.23 derives from the verify width use the widest depth of the ladder; this one reads the
launch width, so a deeper depth can run out of slots that the scheduler counts on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def at_the_widest(original: Callable[..., int], *args: Any, **kwargs: Any) -> int:
    """Around pool_configurator.compute_swa_request_cap: let it read the widest depth."""
    from sglang.srt.runtime_context import get_spec, max_speculative_num_draft_tokens

    spec = get_spec()
    widest = max_speculative_num_draft_tokens() if spec.speculative_adaptive else None
    if widest is None:
        return original(*args, **kwargs)
    with spec.override(speculative_num_draft_tokens=widest, speculative_num_steps=widest - 1):
        return original(*args, **kwargs)
