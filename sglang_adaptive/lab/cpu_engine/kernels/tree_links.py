"""Computes the links by which a token tree is verified from its mask; NGRAM returns masks."""

from __future__ import annotations

import torch
from torch import Tensor


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Fill positions and links of the token trees of a batch; n = `draft_token_num` nodes each.

    In: `tree_mask` [bs*n*n], entry (i, j) is set where node j is i or an ancestor of it, ancestors before descendants;
    `verified_seq_len` [bs] position of the root.
    Out, all written in place: `positions` [bs*n]; `retrieve_index` [bs, n] flat node number; `retrieve_next_token` /
    `retrieve_next_sibling` [bs, n] first child and next child of the same parent, -1 where there is none.
    """
    bs, n = batch_size, draft_token_num
    nodes = torch.arange(n)
    above = tree_mask.view(bs, n, n).bool() & (nodes < nodes[:, None])
    positions.view(bs, n).copy_(verified_seq_len[:, None] + above.sum(-1))
    retrieve_index.copy_(torch.arange(bs * n).view(bs, n))
    parent = torch.where(above, nodes, -1).amax(-1)
    child = (parent[:, :, None] == nodes).transpose(1, 2)  # entry (i, k): k is a child of i
    retrieve_next_token.copy_(_first(child, n))
    sibling = (parent[:, :, None] == parent[:, None, :]) & (nodes > nodes[:, None]) & (parent >= 0)[:, :, None]
    retrieve_next_sibling.copy_(_first(sibling, n))


def _first(chosen: Tensor, n: int) -> Tensor:
    """[bs, n]: the first k with chosen[b, i, k], -1 where there is none."""
    first = torch.where(chosen, torch.arange(n), n).amin(-1)
    return torch.where(first < n, first, -1)
