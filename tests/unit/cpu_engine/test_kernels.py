"""Kernels that build trees, rotate windows of tokens, and move keys and values, compared with plain objects."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.lab.cpu_engine.kernels.slots import copy_all_layer_kv_cache_cpu
from sglang_adaptive.lab.cpu_engine.kernels.tree import (
    FULL_MASK,
    QLEN_ONLY,
    build_tree_kernel_efficient_cpu,
    rotate_input_ids_cpu,
)
from tests.token_trees import Drafted, Node, links, tree_batches


def build(trees: list[Drafted], topk: int, depth: int, seq_lens: torch.Tensor, mode: int = QLEN_ONLY, mask=None):
    bs, n = len(trees), len(trees[0].nodes)
    mask = torch.ones(bs * n * n, dtype=torch.bool) if mask is None else mask
    positions = torch.full((bs * n,), -7)
    retrieve = torch.full((3, bs, n), -1)
    parents = torch.tensor([t.parent_list for t in trees]) if depth > 1 else torch.empty(bs, 0, dtype=torch.long)
    selected = torch.tensor([t.selected for t in trees])
    build_tree_kernel_efficient_cpu(parents, selected, seq_lens, mask, positions, *retrieve, topk, depth, n, mode)
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
    tree = Drafted([Node(number, None) for number in range(3)], selected=[1, 2], parent_list=[-1, 0, 1])
    mask, positions, (_, child, sibling) = build([tree], topk=2, depth=2, seq_lens=torch.tensor([9]))
    assert child.tolist() == [[1, -1, -1]]
    assert sibling.tolist() == [[-1, -1, -1]]
    assert mask[0, 2].tolist() == [True, False, True]
    assert positions.tolist() == [[9, 10, 10]]


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


ROWS = 12


@given(
    st.lists(st.sampled_from([torch.float32, torch.bfloat16]), min_size=1, max_size=3),
    st.lists(st.integers(0, ROWS - 1), max_size=ROWS, unique=True),
    st.data(),
)
def test_rows_move_in_every_buffer_and_sources_are_read_first(dtypes, targets, data):
    sources = [data.draw(st.integers(0, ROWS - 1)) for _ in targets]
    buffers = [torch.randn(ROWS, 2, 3 + i).to(dtype) for i, dtype in enumerate(dtypes)]
    before = [buffer.clone() for buffer in buffers]
    copy_all_layer_kv_cache_cpu(
        torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64),
        torch.tensor([buffer[0].numel() * buffer.element_size() for buffer in buffers]),
        torch.tensor(targets, dtype=torch.int64),
        torch.tensor(sources, dtype=torch.int64),
    )
    for now, old in zip(buffers, before, strict=True):
        wanted = old.clone()
        for target, source in zip(targets, sources, strict=True):
            wanted[target] = old[source]
        assert torch.equal(now, wanted)


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=6), min_size=1, max_size=5), st.data())
def test_each_request_is_shifted_and_gets_its_draft(windows: list[list[int]], data: st.DataObject) -> None:
    lengths = [len(window) for window in windows]
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    drafts = list(range(100, 100 + len(windows)))
    last = data.draw(st.none() | st.tuples(*[st.integers(0, length - 1) for length in lengths]))
    wanted = []
    for index, window in enumerate(windows):
        shifted = [*window[1:], window[-1]]
        shifted[-1 if last is None else last[index]] = drafts[index]
        wanted += shifted
    tokens = torch.tensor([token for window in windows for token in window])
    rotate_input_ids_cpu(
        tokens,
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
        torch.tensor(drafts).unsqueeze(1),
        None if last is None else torch.tensor([start + at for start, at in zip(starts, last, strict=True)]),
    )
    assert tokens.tolist() == wanted
