"""Greedy acceptance of a token tree, and the slots of accepted tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def _accepted_path(
    candidates: list[int], child: list[int], sibling: list[int], wanted: list[int], limit: int
) -> list[int]:
    """Return the accepted nodes from the root, at most `limit`: each draft is the target's token at its parent."""
    path = [0]
    while len(path) < limit:
        target = wanted[path[-1]]
        node = child[path[-1]]
        while node >= 0 and candidates[node] != target:
            node = sibling[node]
        if node < 0:
            break
        path.append(node)
    return path


def verify_tree_greedy_cpu(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk each tree from its root while a child is the target's own next token.

    In, all [bs, n]: `candidates` drafted tokens, `target_predict` the target's argmax after each node, and the links
    of `build_tree_kernel_efficient_cpu` (SGLang spells these keywords `retrive_*`).
    Out: `accept_index` [bs, depth+1] flat numbers of the accepted nodes, root first, -1 after the last;
    `accept_token_num` [bs] accepted nodes without the root; `predicts` [bs*n] the target's token at each accepted node
    (the last of them is the bonus token), other entries untouched.
    """
    limit = accept_index.shape[1]
    flat = retrive_index.tolist()
    wanted = target_predict.tolist()
    rows: list[list[int]] = []
    counts: list[int] = []
    where: list[int] = []
    tokens: list[int] = []
    links = zip(candidates.tolist(), retrive_next_token.tolist(), retrive_next_sibling.tolist(), strict=True)
    for row, (drafted, child, sibling) in enumerate(links):
        path = _accepted_path(drafted, child, sibling, wanted[row], limit)
        nodes = [flat[row][node] for node in path]
        rows.append(nodes + [-1] * (limit - len(path)))
        counts.append(len(path) - 1)
        where += nodes
        tokens += [wanted[row][node] for node in path]
    accept_index.copy_(torch.tensor(rows))
    accept_token_num.copy_(torch.tensor(counts))
    predicts[torch.tensor(where)] = torch.tensor(tokens, dtype=predicts.dtype)


# Selects a verify pass's accepted tokens and slots.


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """bonus_tokens[i] = last accepted token of request i.

    `accept_tokens` holds `accept_stride` places per request; `accept_lens` [bs] counts the bonus token, so it is >= 1.
    """
    starts = torch.arange(accept_lens.numel()) * accept_stride
    bonus_tokens.copy_(accept_tokens.view(-1)[starts + accept_lens.long() - 1])


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """Pack the slots named by the entries of `accept_index` that are not -1, in order."""
    chosen = accept_index.view(-1)
    slots = out_cache_loc[chosen[chosen >= 0].long()]
    accept_out_cache_loc[: slots.numel()] = slots
