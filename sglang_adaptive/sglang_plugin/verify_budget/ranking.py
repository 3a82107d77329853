"""Ranks the drafts of a batch by the chance that the target accepts them."""

from __future__ import annotations

import torch
from torch import Tensor


def likeliest_prefixes(chances: Tensor, budget: int) -> Tensor:
    """Return how many drafts of each request to verify, int64 [requests], `requests * budget` in all.

    *chances* [requests, steps] are what the draft gave each of its tokens. A draft is accepted only if those before it
    are, so its own chance is the product up to it. The largest products are kept, of equal ones the shallower draft and
    then the request that comes first. Products never grow along a chain, so that what is kept of it is a prefix.
    A chance that is not in [0, 1] counts as the nearest that is, NaN as 0. Needs 0 <= *budget* <= steps. All stays on
    the device of *chances*, and nothing waits for it.
    """
    requests = chances.shape[0]
    products = chances.float().nan_to_num(nan=0.0).clamp(0.0, 1.0).cumprod(1)
    # Step by step, so that a stable sort leaves equal ones in the order of their depth.
    order = products.t().reshape(-1).argsort(descending=True, stable=True)
    kept = order[: requests * budget].remainder(requests) if requests else order
    return torch.zeros(requests, dtype=torch.int64, device=chances.device).index_add_(0, kept, torch.ones_like(kept))
