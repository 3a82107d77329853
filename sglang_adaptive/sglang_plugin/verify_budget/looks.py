"""What a verified round says of its drafts beside the accept counts: a few numbers that go to the host with them.

Of a round with a budget each request's verified drafts, and what it would have had accepted of all its drafts: where
none of the verified ones was rejected, the others are drawn by their chances. Without that, what deep drafts bring
would be learnt from those alone that the draft believed in.

Of some rounds (``runtime.budgets``) also what each smaller budget would have kept, and how often drafts of a chance
were right.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sglang_adaptive.runtime.budgets import BINS, UNITS


def completed(chances: Tensor, verified: Tensor, accepted: Tensor, exponent: float, draw: Any) -> Tensor:
    """Return what each request would have had accepted of all its drafts, int64 [requests].

    *chances* are [requests, steps], *verified* and *accepted* [requests]. An absent draft is right with its chance to
    the power of *exponent*; *draw* is the generator of the coins.
    """
    coins = torch.rand(chances.shape, generator=draw, device=chances.device) < chances.pow(exponent)
    at = torch.arange(chances.shape[1], device=chances.device)
    run = (coins | (at < verified[:, None])).long().cumprod(1).sum(1)
    return torch.where(accepted < verified, accepted.long(), run)


def kept(ranked: Tensor, budgets: Tensor, whole: Tensor) -> Tensor:
    """Return accepted drafts of the batch, of those that each of *budgets* keeps, and of as many of each request.

    *ranked* are [requests, steps], *budgets* int64 [n], and *whole* [requests] what was accepted of all steps. The
    answer is int64 [2 * n].
    """
    prefixes = (ranked < ranked.shape[0] * budgets[:, None, None]).sum(2)
    alike = budgets[:, None].expand_as(prefixes)
    return torch.minimum(torch.cat([prefixes, alike]), whole).sum(1)


def calibration(chances: Tensor, verified: Tensor, accepted: Tensor) -> Tensor:
    """Return by bin of the chance the trials, the sum of their chances in UNITS, and successes, int64 [3 * BINS]."""
    at = torch.arange(chances.shape[1], device=chances.device)
    tried = at < torch.minimum(verified, accepted + 1)[:, None]
    found = torch.stack([tried, tried * (chances * UNITS).round(), tried & (at < accepted[:, None])]).long()
    bins = (chances * BINS).long().clamp(0, BINS - 1)
    totals = torch.zeros(3, BINS, dtype=torch.int64, device=chances.device)
    return totals.index_add_(1, bins.flatten(), found.view(3, -1)).flatten()
