"""Rotating the tokens of a multi-layer draft, against lists."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.lab.cpu_engine.kernels.rotate import rotate_input_ids_cpu


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
