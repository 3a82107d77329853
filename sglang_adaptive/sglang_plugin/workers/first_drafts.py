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
    for name in ("topk_p", "topk_index", "draft_probs"):
        whole = getattr(drafted, name)
        if whole is not None:
            setattr(first, name, whole[:, :steps])
    return first
