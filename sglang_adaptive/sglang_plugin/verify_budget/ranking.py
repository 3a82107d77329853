"""Ranks the drafts of a batch by the chance that the target accepts them."""

from __future__ import annotations

import torch
from torch import Tensor


def ranks(chances: Tensor) -> Tensor:
    """Return the place of each draft among all of the batch, 0 for the likeliest, int64 [requests, steps].

    *chances* [requests, steps] are what the draft gave each of its tokens. A draft is accepted only if those before it
    are, so its own chance is the product up to it. Of equal products the shallower draft comes first, and then the
    request that does. Products never grow along a chain, so that the first places of it belong to a prefix. A chance
    that is not in [0, 1] counts as the nearest that is, NaN as 0. All stays on the device, and nothing waits for it.
    """
    requests, steps = chances.shape
    # Step by step, so that a stable sort leaves equal ones in the order of their depth.
    products = chances.float().nan_to_num(nan=0.0).clamp(0.0, 1.0).t().contiguous().cumprod(0)
    order = products.view(-1).argsort(descending=True, stable=True)
    places = torch.arange(requests * steps, device=chances.device)
    return torch.empty_like(order).scatter_(0, order, places).view(steps, requests).t()


def prefixes(ranked: Tensor, budget: int) -> Tensor:
    """Return how many drafts of each request are among the first of *ranked*, `requests * budget` in all.

    *ranked* [requests, steps] are from `ranks`; the answer is int64 [requests]. Needs 0 <= *budget* <= steps.
    """
    return (ranked < ranked.shape[0] * budget).sum(1)
