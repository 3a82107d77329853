"""Tree building compared with trees of objects; greedy verification compared with its definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.lab.cpu_engine.kernels.tree import (
    FULL_MASK,
    QLEN_ONLY,
    build_tree_kernel_efficient_cpu,
    verify_tree_greedy_cpu,
)
from tests.token_trees import Drafted, links, tree_batches


def build(trees: list[Drafted], topk: int, depth: int, seq_lens: torch.Tensor, mode: int = QLEN_ONLY, mask=None):
    bs, n = len(trees), len(trees[0].nodes)
    mask = torch.ones(bs * n * n, dtype=torch.bool) if mask is None else mask
    positions = torch.full((bs * n,), -7)
    retrieve = torch.full((3, bs, n), -1)
    parents = torch.tensor([t.parent_list for t in trees]) if depth > 1 else torch.empty(bs, 0, dtype=torch.long)
    selected = torch.tensor([t.selected for t in trees])
    build_tree_kernel_efficient_cpu(
        parents, selected, seq_lens, mask, positions, *retrieve, topk, depth, n, mode
    )  # fmt: skip
    return mask[: bs * n * n].view(bs, n, n), positions.view(bs, n), retrieve


@given(tree_batches(), st.integers(0, 50))
def test_a_node_sees_its_ancestors_and_sits_at_its_depth(batch, length):
    trees, topk, depth = batch
    seq_lens = torch.arange(length, length + len(trees))
    mask, positions, _ = build(trees, topk, depth, seq_lens)
    for row, tree in enumerate(trees):
        for node in tree.nodes:
            seen = {other.number for other in node.ancestors()}
            assert {i for i, sees in enumerate(mask[row, node.number].tolist()) if sees} == seen
            assert positions[row, node.number] == seq_lens[row] + len(seen) - 1


@given(tree_batches())
def test_links_lead_to_every_child_in_order(batch):
    trees, topk, depth = batch
    _, _, retrieve = build(trees, topk, depth, torch.zeros(len(trees), dtype=torch.long))
    for got, wanted in zip(retrieve, links(trees), strict=True):
        assert torch.equal(got, wanted)


def test_a_candidate_whose_parent_was_not_selected_cannot_be_reached():
    # topk 2, two levels: candidate 2 is a child of candidate 0, which is not selected.
    mask, positions, (_, child, sibling) = build_raw(parent_list=[-1, 0, 1], selected=[1, 2])
    assert child.tolist() == [[1, -1, -1]]
    assert sibling.tolist() == [[-1, -1, -1]]
    assert mask.view(3, 3)[2].tolist() == [True, False, True]
    assert positions.tolist() == [9, 10, 10]


def build_raw(parent_list: list[int], selected: list[int]):
    n = len(selected) + 1
    mask, positions, retrieve = torch.ones(n * n, dtype=torch.bool), torch.empty(n).long(), torch.full((3, 1, n), -1)
    tensors = (torch.tensor([parent_list]), torch.tensor([selected]), torch.tensor([9]), mask, positions, *retrieve)
    build_tree_kernel_efficient_cpu(*tensors, 2, 2, n, QLEN_ONLY)
    return mask, positions, retrieve


@given(tree_batches(), st.integers(0, 5))
def test_a_full_mask_has_the_tree_behind_each_prefix(batch, length):
    trees, topk, depth = batch
    n, prefixes = len(trees[0].nodes), torch.arange(length, length + len(trees))
    behind, *_ = build(trees, topk, depth, prefixes)
    seen = [torch.ones(n, int(prefix), dtype=torch.bool) for prefix in prefixes]
    wanted = [torch.cat(pair, dim=1) for pair in zip(seen, behind, strict=True)]
    mask = torch.ones(sum(one.numel() for one in wanted), dtype=torch.bool)
    build(trees, topk, depth, prefixes, FULL_MASK, mask)
    assert torch.equal(mask, torch.cat([one.flatten() for one in wanted]))


def test_other_mask_layouts_are_refused():
    with pytest.raises(NotImplementedError):
        build_tree_kernel_efficient_cpu(*[torch.empty(0)] * 8, 1, 1, 2, 2)


@given(tree_batches(), st.data())
def test_accepted_are_the_nodes_whose_every_token_is_the_targets_own(batch, data):
    trees, _, depth = batch
    bs, n = len(trees), len(trees[0].nodes)
    target = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=bs * n, max_size=bs * n))).view(bs, n)
    predicts = torch.full((bs * n,), -7, dtype=torch.int32)
    accept_index = torch.full((bs, depth + 1), -1, dtype=torch.int32)
    counts = torch.empty(bs, dtype=torch.int32)
    index, child, sibling = links(trees)
    verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=counts,
        candidates=torch.tensor([[node.token for node in tree.nodes] for tree in trees]),
        retrive_index=index,
        retrive_next_token=child,
        retrive_next_sibling=sibling,
        target_predict=target,
    )
    for row, tree in enumerate(trees):
        accepted = [node for node in tree.nodes if is_accepted(node, target[row].tolist())]
        accepted.sort(key=lambda node: len(node.ancestors()))
        numbers = [row * n + node.number for node in accepted]
        assert counts[row] == len(accepted) - 1
        assert accept_index[row].tolist() == numbers + [-1] * (depth + 1 - len(numbers))
        wanted = {row * n + node.number: int(target[row, node.number]) for node in accepted}
        got = {row * n + i: token for i, token in enumerate(predicts.view(bs, n)[row].tolist()) if token != -7}
        assert got == wanted


def is_accepted(node, target: list[int]) -> bool:
    """The root is accepted; another node if its parent is and its token is the target's after the parent."""
    return node.parent is None or (is_accepted(node.parent, target) and node.token == target[node.parent.number])
