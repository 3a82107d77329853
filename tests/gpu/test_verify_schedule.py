"""A verify pass whose layers share one tile schedule: the same bits as with one per layer, also in CUDA graphs."""

from __future__ import annotations

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
    """Return what ``verify_schedule`` computes for *inputs*."""
    from types import SimpleNamespace

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


@pytest.mark.parametrize("batch", [1, 2, 7, 32, 64])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_the_same_bits(batch: int, width: int) -> None:
    import torch
    from sgl_kernel.flash_attn import flash_attn_with_kvcache

    inputs = problem(batch, width, seed=batch)
    own = [flash_attn_with_kvcache(**inputs) for _ in range(LAYERS)]
    shared = schedule(inputs)
    ours = [flash_attn_with_kvcache(**inputs, scheduler_metadata=shared) for _ in range(LAYERS)]
    assert all(torch.equal(one, other) for one, other in zip(own, ours, strict=True))


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
