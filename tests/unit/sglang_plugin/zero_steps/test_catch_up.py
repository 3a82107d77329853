"""The numbers that a catch-up sends to the device: one copy, with each part aligned like a separate tensor."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sglang_adaptive.sglang_plugin.stages.zero_steps.catch_up import on_device

PARTS = st.lists(st.lists(st.integers(0, 2**62), max_size=9), min_size=1, max_size=6)


@given(PARTS)
def test_every_part_arrives_whole_and_aligned(parts: list[list[int]]) -> None:
    found = on_device(parts, "cpu")
    assert [tensor.tolist() for tensor in found] == parts
    starts = {tensor.data_ptr() % 16 for tensor in found if len(tensor)}
    assert len(starts) <= 1  # that of the whole, which the device allocator aligns
    assert len({tensor.untyped_storage().data_ptr() for tensor in found}) == 1
