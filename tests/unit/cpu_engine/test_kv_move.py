"""Moving cache rows by address, against the same move on the tensors themselves."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.lab.cpu_engine.kernels.kv_move import copy_all_layer_kv_cache_cpu

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
