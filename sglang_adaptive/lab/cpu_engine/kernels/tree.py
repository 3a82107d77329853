"""The token tree that the target verifies: built from the draft's candidates or from a mask, and accepted greedily."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

# The tokens that the next layer of a multi-layer draft reads.


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None,
) -> None:
    """Shift each request's tokens left by one and write its draft after its last token.

    Request i has ``extend_seq_lens[i]`` entries of *input_ids* from ``extend_start_loc[i]`` on. Its last token is at
    ``select_index[i]``, or in its last entry without *select_index*. *topk_index* has one draft per request.
    """
    lengths = extend_seq_lens.long()
    last = extend_start_loc.long() + lengths - 1
    shifted = torch.roll(input_ids, -1)
    shifted[last] = input_ids[last]
    input_ids.copy_(shifted)
    where = last if select_index is None else select_index.long()
    input_ids[where] = topk_index.flatten().to(input_ids.dtype)


# A tree has `draft_token_num` = n nodes per request: node 0 is the root (the last verified token), nodes 1 .. n-1 are
# the selected candidates, in ascending candidate id. Ids count the candidates in draft order: the root's topk children
# are 0 .. topk-1; every later step expands topk parents by topk children each. So id // topk is the parent's index in
# `parent_list` (index 0 is the root), and `parent_list` [bs, places] holds the parent's own candidate id.


FULL_MASK, QLEN_ONLY = 0, 1
"""SGLang's numbers for a mask over a request's prefix and the tree's nodes, and for one over the nodes only."""


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    seq_lens: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill mask, positions and links of the token trees of a batch.

    In: `selected_index` [bs, n-1] candidate ids, ascending; `seq_lens` [bs] position of the root.
    Out, all written in place: `tree_mask` [bs*n*n] bool, node i may attend to node j; as a FULL_MASK, flat
    [n, its seq_len + n] per request, where the prefix is not written; `positions` [bs*n];
    `retrieve_index` [bs, n] flat node number; `retrieve_next_token` / `retrieve_next_sibling` [bs, n] first child and
    next child of the same parent, -1 where there is none (the caller fills them with -1 beforehand).
    Raises NotImplementedError for another mask layout.
    """
    if int(tree_mask_mode) not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(f"tree mask mode {tree_mask_mode}: the CPU engine builds no packed masks")
    bs, n = seq_lens.numel(), draft_token_num
    retrieve_index.copy_(torch.arange(bs * n).view(bs, n))
    full = int(tree_mask_mode) == FULL_MASK
    mask = torch.empty(bs, n, n, dtype=torch.bool) if full else tree_mask[: bs * n * n].view(bs, n, n)
    if topk == 1:
        _fill_chain(n, seq_lens, mask, positions, retrieve_next_token)
    else:
        parents = _parent_nodes(parent_list, selected_index, topk)
        _fill_mask(parents, mask)
        levels = mask.sum(-1) - 1
        positions.view(bs, n).copy_(seq_lens[:, None] + levels)
        _link(pad(parents, (1, 0), value=-1), retrieve_next_token, retrieve_next_sibling)
    if full:
        _write_behind_prefixes(mask, seq_lens.tolist(), tree_mask)


def _write_behind_prefixes(mask: Tensor, prefixes: list[int], tree_mask: Tensor) -> None:
    """Write each request's [n, n] of *mask* after its prefix into the flat *tree_mask*."""
    n, begin = mask.shape[1], 0
    for of_request, prefix in zip(mask, prefixes, strict=True):
        end = begin + n * (prefix + n)
        tree_mask[begin:end].view(n, prefix + n)[:, prefix:] = of_request
        begin = end


def _fill_chain(n: int, seq_lens: Tensor, mask: Tensor, positions: Tensor, next_token: Tensor) -> None:
    """topk 1: the parent of every node is the one before it."""
    steps = torch.arange(n)
    mask.copy_(steps[:, None] >= steps)
    positions.view(-1, n).copy_(seq_lens[:, None] + steps)
    next_token[:, : n - 1] = steps[1:]


def _parent_nodes(parent_list: Tensor, selected: Tensor, topk: int) -> Tensor:
    """[bs, n-1]: node number of the parent of nodes 1 .. n-1; -1 when the parent itself was not selected."""
    place = selected // topk
    if parent_list.numel() == 0:  # one step: all candidates are children of the root
        return torch.zeros_like(selected)
    parent_id = parent_list.gather(1, place.clamp(max=parent_list.shape[1] - 1))
    same = selected[:, None, :] == parent_id[:, :, None]
    node = torch.where(same.any(-1), same.int().argmax(-1) + 1, -1)
    return torch.where(place == 0, 0, node)


def _fill_mask(parents: Tensor, mask: Tensor) -> None:
    """A node sees the root, itself and what its parent sees; parents have smaller numbers than their children."""
    bs, n = mask.shape[0], mask.shape[1]
    mask.copy_(torch.eye(n, dtype=torch.bool).expand(bs, n, n))
    mask[:, :, 0] = True
    rows = torch.arange(bs)
    for node in range(1, n):
        mask[:, node] |= mask[rows, parents[:, node - 1].clamp(min=0)]


def _link(parents: Tensor, next_token: Tensor, next_sibling: Tensor) -> None:
    """Write each node's first child and the next child of its parent, -1 where there is none.

    *parents* [bs, n] has the node number of each node's parent, -1 for the root and for nodes that stay unlinked.
    """
    nodes = torch.arange(parents.shape[1])
    next_token.copy_(_first(parents[:, None] == nodes[:, None]))
    among = (parents[:, :, None] == parents[:, None]) & (parents >= 0)[:, :, None]
    next_sibling.copy_(_first(among & (nodes > nodes[:, None])))


def _first(chosen: Tensor) -> Tensor:
    """[bs, n]: the first k with chosen[b, i, k], -1 where there is none."""
    return torch.where(chosen.any(-1), chosen.int().argmax(-1), -1)


# Computes a token tree's links from its mask; NGRAM returns masks.


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
    _link(torch.where(above, nodes, -1).amax(-1), retrieve_next_token, retrieve_next_sibling)


# Accepts drafts greedily.


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
