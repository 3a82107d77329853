"""Computes what a verified round says about its drafts beyond accept counts: a few numbers for the host.

For a round with a budget: each request's verified drafts, and how many of all its drafts would have been accepted. If
no verified draft was rejected, the others are drawn by their chances. Otherwise the value of deep drafts would be
learned only from drafts that the draft model was sure of.

For some rounds (``runtime.budgets``) also what each smaller budget would have kept, and how often drafts of a given
chance were right.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sglang_adaptive.runtime.budgets import BINS, UNITS


def completed(chances: Tensor, verified: Tensor, accepted: Tensor, exponent: float, draw: Any) -> Tensor:
    """Return how many of all its drafts each request would have accepted, int64 [requests].

    *chances* are [requests, steps], *verified* and *accepted* [requests]. An absent draft is right with its chance to
    the power of *exponent*; *draw* is the generator of the coins.
    """
    coins = torch.rand(chances.shape, generator=draw, device=chances.device) < chances.pow(exponent)
    at = torch.arange(chances.shape[1], device=chances.device)
    run = (coins | (at < verified[:, None])).long().cumprod(1).sum(1)
    return torch.where(accepted < verified, accepted.long(), run)


def kept(ranked: Tensor, budgets: Tensor, whole: Tensor) -> Tensor:
    """Return the batch's accepted drafts under each of *budgets*: first ranked, then equally many per request.

    *ranked* are [requests, steps], *budgets* int64 [n], and *whole* [requests] the accepted drafts of all steps. The
    result is int64 [2 * n].
    """
    prefixes = (ranked < ranked.shape[0] * budgets[:, None, None]).sum(2)
    alike = budgets[:, None].expand_as(prefixes)
    return torch.minimum(torch.cat([prefixes, alike]), whole).sum(1)


def calibration(chances: Tensor, verified: Tensor, accepted: Tensor) -> Tensor:
    """Return trials, the sum of their chances in UNITS, and successes by bin of the chance, int64 [3 * BINS]."""
    at = torch.arange(chances.shape[1], device=chances.device)
    tried = at < torch.minimum(verified, accepted + 1)[:, None]
    found = torch.stack([tried, tried * (chances * UNITS).round(), tried & (at < accepted[:, None])]).long()
    bins = (chances * BINS).long().clamp(0, BINS - 1)
    totals = torch.zeros(3, BINS, dtype=torch.int64, device=chances.device)
    return totals.index_add_(1, bins.flatten(), found.view(3, -1)).flatten()
