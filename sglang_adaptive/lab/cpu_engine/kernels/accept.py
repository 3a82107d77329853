"""Selects the accepted tokens and slots of a verify pass."""

from __future__ import annotations

import torch
from torch import Tensor


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """bonus_tokens[i] = last accepted token of request i.

    `accept_tokens` holds `accept_stride` places a request; `accept_lens` [bs] counts the bonus token, so it is >= 1.
    """
    starts = torch.arange(accept_lens.numel()) * accept_stride
    bonus_tokens.copy_(accept_tokens.view(-1)[starts + accept_lens.long() - 1])


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """Pack the slots named by the entries of `accept_index` that are not -1, in order."""
    chosen = accept_index.view(-1)
    slots = out_cache_loc[chosen[chosen >= 0].long()]
    accept_out_cache_loc[: slots.numel()] = slots
