"""Kernels that move keys and values, rotate them, and find their slots."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.lab.cpu_engine.kernels.slots import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    last_slots,
)
from sglang_adaptive.lab.cpu_engine.kernels.tree import rotate_input_ids_cpu

POOL_LEN = 24


@st.composite
def ranges(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw a request table of distinct slots, some of its rows in any order, and a range of positions for each."""
    requests = draw(st.integers(1, 6))
    table = torch.randperm(requests * POOL_LEN, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    rows = draw(st.lists(st.integers(0, requests - 1), min_size=1, max_size=requests, unique=True))
    bounds = [sorted(draw(st.tuples(*[st.integers(0, POOL_LEN)] * 2))) for _ in rows]
    start, end = (torch.tensor(side, dtype=torch.int32) for side in zip(*bounds, strict=True))
    return table.view(requests, POOL_LEN).int(), torch.tensor(rows), start, end


def cells(rows: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> list[tuple[int, int]]:
    triples = zip(rows.tolist(), start.tolist(), end.tolist(), strict=True)
    return [(row, position) for row, first, last in triples for position in range(first, last)]


@given(ranges())
def test_extend_locs_are_the_slots_of_the_ranges_in_order(case):
    table, rows, start, end = case
    wanted = [int(table[cell]) for cell in cells(rows, start, end)]
    out = torch.full((len(wanted) + 3,), -7, dtype=torch.int64)
    assign_extend_cache_locs_cpu(rows, table, start, end, out, POOL_LEN)
    assert out.tolist() == [*wanted, -7, -7, -7]


@given(ranges())
def test_assigning_slots_changes_the_ranges_and_nothing_else(case):
    table, rows, start, end = case
    where = cells(rows, start, end)
    slots = torch.arange(1000, 1000 + len(where))
    wanted = table.clone()
    for cell, slot in zip(where, slots.tolist(), strict=True):
        wanted[cell] = slot
    assign_req_to_token_pool_cpu(rows, table, start, end, slots, POOL_LEN)
    assert torch.equal(table, wanted)


@given(ranges(), st.integers(1, 4), st.integers(1, 3))
def test_draft_locs_follow_the_sequence(case, topk, num_steps):
    table, rows, start, _ = case
    width = topk * num_steps
    seq_lens = start.clamp(max=POOL_LEN - width)
    out = torch.empty(rows.numel() * width, dtype=torch.int64)
    assign_draft_cache_locs_contiguous_cpu(rows, table, seq_lens, out, POOL_LEN, topk, num_steps)
    assert out.tolist() == [int(table[cell]) for cell in cells(rows, seq_lens, seq_lens + width)]


@given(ranges())
def test_last_slot_is_that_of_the_last_position(case):
    table, rows, lengths, _ = case
    pairs = zip(rows.tolist(), lengths.tolist(), strict=True)
    wanted = [int(table[row, length - 1]) if length else -1 for row, length in pairs]
    assert last_slots(table, rows, lengths).tolist() == wanted


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 3))
def test_bonus_token_is_the_last_accepted_one(lengths, spare):
    stride = max(lengths) + spare
    tokens = [[100 * row + place for place in range(stride)] for row in range(len(lengths))]
    out = torch.empty(len(lengths), dtype=torch.int32)
    fill_bonus_tokens_cpu(torch.tensor(tokens).view(-1), torch.tensor(lengths, dtype=torch.int32), out, stride)
    assert out.tolist() == [tokens[row][length - 1] for row, length in enumerate(lengths)]


@given(st.lists(st.integers(-1, 9), min_size=1, max_size=12))
def test_accepted_slots_are_packed_in_order(accept_index):
    slots = torch.arange(50, 60)
    out = torch.full((len(accept_index),), -7, dtype=torch.int64)
    fill_accept_out_cache_loc_cpu(torch.tensor(accept_index, dtype=torch.int32), slots, out)
    kept = [50 + index for index in accept_index if index != -1]
    assert out.tolist() == kept + [-7] * (len(accept_index) - len(kept))


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
