"""Tiles laid out on the device match those of FlashInfer's planner, with the same attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

HEADS, SIZE, ROOM = 8, 64, 4096
SHORT, LONG = (1, 40, 127), (2100, 3, 900)
"""Lengths of three requests: at capture, and at replay."""


def _wrapper(kind: str, key_heads: int) -> Any:
    """Return a FlashInfer wrapper for a CUDA graph of three requests, made like SGLang's."""
    import flashinfer
    import torch

    def numbers(size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype, device="cuda")

    requests, workspace = len(SHORT), numbers(64 << 20, torch.uint8)
    paged = (numbers(requests + 1), numbers(3 * ROOM), numbers(requests) + 1)
    if kind == "decode":
        return flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "NHD", use_cuda_graph=True, use_tensor_cores=key_heads == 2, backend="fa2",
            paged_kv_indptr_buffer=paged[0], paged_kv_indices_buffer=paged[1], paged_kv_last_page_len_buffer=paged[2],
        )  # fmt: skip
    masked = {"custom_mask_buf": numbers(1 << 20, torch.uint8), "mask_indptr_buf": numbers(requests + 1)}
    return flashinfer.BatchPrefillWithPagedKVCacheWrapper(
        workspace, "NHD", use_cuda_graph=True, backend="fa2", qo_indptr_buf=numbers(requests + 1),
        paged_kv_indptr_buf=paged[0], paged_kv_indices_buf=paged[1], paged_kv_last_page_len_buf=paged[2],
        **(masked if kind == "verify" else {}),
    )  # fmt: skip


def _plan(wrapper: Any, kind: str, width: int, key_heads: int, lengths: Any, table: Any) -> None:
    """Let FlashInfer plan a pass over *lengths* on the host."""
    import torch

    requests = len(lengths)
    ends = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    keys = torch.cat([table[row, :length] for row, length in enumerate(lengths)])
    ones, kinds = torch.ones(requests, dtype=torch.int32, device="cuda"), {"q_data_type": torch.bfloat16}
    if kind == "decode":
        wrapper.plan(ends, keys, ones, HEADS, key_heads, SIZE, 1, kv_data_type=torch.bfloat16, **kinds)
        return
    queries = torch.arange(requests + 1, dtype=torch.int32, device="cuda") * width
    mask = None
    if kind == "verify":
        each = torch.arange(width, device="cuda")[:, None]
        mask = torch.cat([(torch.arange(size, device="cuda") <= size - width + each).flatten() for size in lengths])
    wrapper.plan(queries, ends, keys, ones, HEADS, key_heads, SIZE, 1, custom_mask=mask, causal=mask is None, **kinds)


@pytest.mark.parametrize("key_heads", [2, 4])
@pytest.mark.parametrize(("kind", "width"), [("decode", 1), ("extend", 4), ("verify", 4), ("verify", 8)])
def test_attention_is_that_of_the_host_plan(
    kind: str, width: int, key_heads: int, record_property: Callable[[str, object], None]
) -> None:
    """Also in a graph captured for other lengths, with small tiles; kernel times are recorded."""
    import torch
    from triton.testing import do_bench

    from sglang_adaptive.sglang_plugin.stages.fast_path import tile_kernel

    def small_tiles(wrapper: Any) -> None:
        if kind != "decode":
            wrapper._plan_info = tile_kernel.with_small_tiles(wrapper._plan_info, width * HEADS // key_heads)

    torch.manual_seed(5)
    table = torch.randperm(3 * ROOM, device="cuda").view(3, ROOM).int()
    cache = torch.randn(3 * ROOM, 2, 1, key_heads, SIZE, device="cuda", dtype=torch.bfloat16)
    asked = torch.randn(len(SHORT) * width, HEADS, SIZE, device="cuda", dtype=torch.bfloat16)
    long = [max(length, width) for length in LONG]
    planned = _wrapper(kind, key_heads)
    _plan(planned, kind, width, key_heads, long, table)
    large = planned.run(asked, cache)
    small_tiles(planned)
    wanted = planned.run(asked, cache)
    torch.testing.assert_close(wanted, large, rtol=2e-2, atol=2e-3)

    mine = _wrapper(kind, key_heads)
    _plan(mine, kind, width, key_heads, [max(length, width) for length in SHORT], table)
    small_tiles(mine)
    mine.run(asked, cache)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = mine.run(asked, cache)
    processors = torch.cuda.get_device_properties("cuda").multi_processor_count
    layout = tile_kernel.Layout.of(mine, len(SHORT), HEADS, key_heads, processors)
    assert layout.width == width
    rows, lengths = torch.arange(3, device="cuda"), torch.tensor(long, device="cuda") - width
    masked = (mine._custom_mask_buf, mine._mask_indptr_buf) if kind == "verify" else ()
    ends, keys = mine._paged_kv_indptr_buf, mine._paged_kv_indices_buf
    queries = mine._qo_indptr_buf if layout.has_queries else None

    def lay_out() -> None:
        tile_kernel.lay_out(layout, rows, lengths, table, width, ends, keys, queries, *masked)

    lay_out()
    graph.replay()
    assert torch.equal(found, wanted)
    record_property("us", 1000 * do_bench(lay_out, return_mode="median"))
    assert list(map(int, mine._plan_info)) == list(map(int, planned._plan_info))
    for name, start, size in _arrays(layout):
        theirs = planned._int_workspace_buffer.view(torch.int32)[start : start + size]
        assert torch.equal(layout.ints[start : start + size], theirs), name


def _arrays(layout: Any) -> list[tuple[str, int, int]]:
    """Return the arrays of a plan whose size does not depend on lengths: name, place and size."""
    request, _, _, rows, outputs, keys, _ = layout.places
    found = [("outputs", outputs, len(SHORT) + 1), ("keys", keys, 1), ("requests", request, len(SHORT))]
    return [*found, ("rows", rows, len(SHORT) * layout.width + 1)] if layout.has_queries else found
