"""Kernels that move keys and values, rotate them, and find their slots."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.lab.cpu_engine.kernels.slots import (
    copy_all_layer_kv_cache_cpu,
)
from sglang_adaptive.lab.cpu_engine.kernels.tree import rotate_input_ids_cpu

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
