"""fa3 computes the same bits with one tile schedule for all layers, and from queries with gaps between them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

HEADS, KV_HEADS, HEAD_DIM, PAGES, LAYERS = 32, 8, 128, 4096, 3
LENGTHS = (1, 17, 130, 700, 1999)


def problem(batch: int, width: int, seed: int) -> dict[str, Any]:
    """Return random inputs of a chain's verify: *width* queries a request, paged KV, page size 1."""
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    lengths = torch.tensor([LENGTHS[(row + seed) % len(LENGTHS)] + width for row in range(batch)], device="cuda")
    pool = torch.randperm(64 * PAGES, generator=generator, device="cuda")[: batch * PAGES]

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16)

    return {
        "q": normal(batch * width, HEADS, HEAD_DIM),
        "k_cache": normal(64 * PAGES, 1, KV_HEADS, HEAD_DIM),
        "v_cache": normal(64 * PAGES, 1, KV_HEADS, HEAD_DIM),
        "page_table": pool.view(batch, PAGES).to(torch.int32),
        "cache_seqlens": lengths.to(torch.int32),
        "cu_seqlens_q": torch.arange(0, batch * width + 1, width, dtype=torch.int32, device="cuda"),
        "max_seqlen_q": width,
        "causal": True,
    }


def schedule(inputs: dict[str, Any]) -> Any:
    """Return the schedule of a verify pass for *inputs*."""
    import torch
    from sgl_kernel.flash_attn import get_scheduler_metadata

    from sglang_adaptive.sglang_plugin.stages.fast_path import fa3

    metadata = SimpleNamespace(
        cache_seqlens_int32=inputs["cache_seqlens"],
        cu_seqlens_q=inputs["cu_seqlens_q"],
        max_seq_len_q=inputs["max_seqlen_q"],
        page_table=inputs["page_table"],
    )
    return fa3._computed(
        SimpleNamespace(
            _get_scheduler_metadata=get_scheduler_metadata,
            forward_metadata=metadata,
            page_size=1,
            num_attention_heads=HEADS,
            num_kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            kv_cache_dtype=torch.bfloat16,
            has_softcap=False,
            num_splits=0,
        )
    )


def with_gaps(q: Any) -> Any:
    """Return *q*, [tokens, heads, head size], laid out as by a layer's projection: next to keys and values."""
    import torch

    tokens = q.shape[0]
    rows = torch.full((tokens, (HEADS + 2 * KV_HEADS) * HEAD_DIM), float("nan"), dtype=q.dtype, device=q.device)
    rows[:, : HEADS * HEAD_DIM] = q.flatten(1)
    return rows[:, : HEADS * HEAD_DIM].view(tokens, HEADS, HEAD_DIM)


@pytest.mark.parametrize("batch", [1, 2, 7, 32, 64])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_the_same_bits(batch: int, width: int) -> None:
    import torch
    from sgl_kernel.flash_attn import flash_attn_with_kvcache

    inputs = problem(batch, width, seed=batch)
    gaps, shared = with_gaps(inputs["q"]), schedule(inputs)
    assert batch * width == 1 or not gaps.is_contiguous()
    own = [flash_attn_with_kvcache(**inputs) for _ in range(LAYERS)]
    ours = [flash_attn_with_kvcache(**inputs, scheduler_metadata=shared) for _ in range(LAYERS)]
    assert all(torch.equal(one, other) for one, other in zip(own, ours, strict=True))
    for more in ({}, {"scheduler_metadata": shared}, {"num_splits": 1}):
        dense = flash_attn_with_kvcache(**inputs, **more)
        assert torch.equal(dense, flash_attn_with_kvcache(**{**inputs, "q": gaps}, **more))


def test_the_same_bits_in_a_graph_whose_lengths_change() -> None:
    import torch
    from sgl_kernel.flash_attn import flash_attn_with_kvcache

    inputs = problem(batch=8, width=4, seed=1)

    def layers() -> list[Any]:
        shared = schedule(inputs)
        return [flash_attn_with_kvcache(**inputs, scheduler_metadata=shared) for _ in range(LAYERS)]

    layers()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layers()
    for seed in range(2, 7):
        other = problem(batch=8, width=4, seed=seed)
        for name in ("q", "page_table", "cache_seqlens"):
            inputs[name].copy_(other[name])
        graph.replay()
        wanted = flash_attn_with_kvcache(**inputs)
        assert all(torch.equal(output, wanted) for output in captured)


def test_how_long_the_copy_takes(record_property: Callable[[str, object], None]) -> None:
    """Recorded, not asserted, for a round of 64 requests without drafts."""
    from sgl_kernel.flash_attn import flash_attn_with_kvcache
    from triton.testing import do_bench

    inputs = problem(batch=64, width=1, seed=0)
    gaps = with_gaps(inputs.pop("q"))
    for name, query in (("with_copy_us", lambda: gaps.contiguous()), ("in_place_us", lambda: gaps)):
        call = lambda query=query: flash_attn_with_kvcache(q=query(), **inputs)  # noqa: E731
        record_property(name, 1000 * do_bench(call, return_mode="median"))
