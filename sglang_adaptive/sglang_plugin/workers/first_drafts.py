"""The first drafts of a round that drafted more than it verifies."""

from __future__ import annotations

import copy
from typing import Any


def first_drafts(drafted: Any, steps: int) -> Any:
    """Return a copy of SGLang's EagleDraftInput with the first *steps* drafts of each request.

    Its tensors, each [requests, drafts, ...], have a draft of every layer. *drafted* is left as it is: with overlap
    the scheduler keeps it.
    """
    first = copy.copy(drafted)
    first.topk_p, first.topk_index = drafted.topk_p[:, :steps], drafted.topk_index[:, :steps]
    if drafted.draft_probs is not None:
        first.draft_probs = drafted.draft_probs[:, :steps].contiguous()  # the sampler reads it without strides
    return first
