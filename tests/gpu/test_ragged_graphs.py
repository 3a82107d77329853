"""Packed verify passes in graphs of fewer steps: fa3's metadata, and its kernel on rows longer than captured ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests import checks

BUDGET, STEPS = 2, 7
WIDTH, LONGEST = BUDGET + 1, STEPS + 1
HEAD_DIM, PAGES = 128, 4096
LENGTHS = (1, 4000, 130, 700, 1999)
KEPT = ([7, 0, 0, 1], [2, 2, 2, 2], [0, 7, 1, 0], [4, 4, 0, 0])
"""Drafts kept of four requests at a time."""


@pytest.mark.parametrize("check", checks.named_in("ragged_checks"))
def test_metadata(check: str) -> None:
    from tests import ragged_checks

    getattr(ragged_checks, check)()


class Graph:
    """A captured attention call of *batch* requests with WIDTH queries each, three layers sharing a schedule."""

    def __init__(self, batch: int, heads: tuple[int, int], longest: int, shared: bool) -> None:
        import torch
        from sgl_kernel.flash_attn import flash_attn_with_kvcache, get_scheduler_metadata

        draw = torch.Generator("cuda").manual_seed(batch)
        self.batch, self.heads = batch, heads

        def normal(*shape: int) -> Any:
            return torch.randn(*shape, generator=draw, device="cuda", dtype=torch.bfloat16)

        pool = torch.randperm(batch * PAGES, generator=draw, device="cuda")
        self.inputs: dict[str, Any] = {
            "q": normal(batch * WIDTH, heads[0], HEAD_DIM),
            "k_cache": normal(batch * PAGES, 1, heads[1], HEAD_DIM),
            "v_cache": normal(batch * PAGES, 1, heads[1], HEAD_DIM),
            "page_table": pool.view(batch, PAGES).to(torch.int32),
            "cache_seqlens": torch.zeros(batch, dtype=torch.int32, device="cuda"),
            "cu_seqlens_q": torch.arange(0, batch * WIDTH + 1, WIDTH, dtype=torch.int32, device="cuda"),
        }
        self.rectangle = [WIDTH] * batch
        self.set(self.rectangle)

        def layers() -> list[Any]:
            more: dict[str, Any] = {}
            if shared:
                more["scheduler_metadata"] = get_scheduler_metadata(
                    batch_size=batch, max_seqlen_q=longest, max_seqlen_k=PAGES, num_heads=heads[0],
                    num_heads_k=heads[1], headdim=HEAD_DIM, cache_seqlens=self.inputs["cache_seqlens"],
                    qkv_dtype=torch.bfloat16, cu_seqlens_q=self.inputs["cu_seqlens_q"], page_size=1, causal=True,
                    has_softcap=False, num_splits=0,
                )  # fmt: skip
            call = {**self.inputs, "max_seqlen_q": longest, "causal": True, **more}
            return [flash_attn_with_kvcache(**call) for _ in range(3)]

        layers()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._outputs = layers()

    def set(self, lengths: list[int]) -> None:
        """Set the query *lengths* of the next replay."""
        import torch

        ends = [0]
        for length in lengths:
            ends.append(ends[-1] + length)
        contexts = [LENGTHS[row % len(LENGTHS)] for row in range(self.batch)]
        keys = [context + length for context, length in zip(contexts, lengths, strict=True)]
        self.inputs["cu_seqlens_q"].copy_(torch.tensor(ends, dtype=torch.int32))
        self.inputs["cache_seqlens"].copy_(torch.tensor(keys, dtype=torch.int32))

    def replay(self, lengths: list[int]) -> Any:
        """Return the attention of rows of these *lengths*, [tokens, heads, head size], the same in each layer."""
        import torch

        self.set(lengths)
        for output in self._outputs:
            output.fill_(float("nan"))
        self._graph.replay()
        first, *others = self._outputs
        assert all(torch.allclose(first, other, rtol=0, atol=0, equal_nan=True) for other in others)
        return self._outputs[-1].clone()

    def wanted(self) -> Any:
        """Return the same in float32, per request, by plain matrix products."""
        import torch

        starts, keys = self.inputs["cu_seqlens_q"].tolist(), self.inputs["cache_seqlens"].tolist()
        rows, group = [], self.heads[0] // self.heads[1]
        for row, (begin, end) in enumerate(itertools.pairwise(starts)):
            slots = self.inputs["page_table"][row, : keys[row]].long()
            k, v = (self.inputs[name][slots, 0].float().repeat_interleave(group, 1) for name in ("k_cache", "v_cache"))
            scores = torch.einsum("qhd,khd->hqk", self.inputs["q"][begin:end].float(), k) * HEAD_DIM**-0.5
            places = torch.arange(keys[row], device="cuda")
            last = torch.arange(keys[row] - (end - begin), keys[row], device="cuda")
            scores.masked_fill_(places[None, None] > last[None, :, None], float("-inf"))
            rows.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
        return torch.cat(rows)

    def wrong_rows(self, lengths: list[int]) -> int:
        """Return how many tokens are wrong."""
        import torch

        found, wanted = self.replay(lengths).float(), self.wanted()
        right = torch.isclose(found, wanted, rtol=2e-2, atol=1e-2)  # bfloat16, by its two products
        return int((~right.flatten(1).all(1)).sum())


def of(batch: int, kept: list[int]) -> list[int]:
    """Return the query lengths of *batch* requests that keep *kept*, four by four."""
    lengths = [kept[row % 4] + 1 for row in range(batch)]
    lengths[-1] += batch * WIDTH - sum(lengths)
    return lengths


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("heads", [(32, 8), (64, 8), (32, 2)])
@pytest.mark.parametrize("batch", [4, 8, 32, 64])
def test_rows_of_all_lengths_are_right_and_rectangles_after_them(
    batch: int, heads: tuple[int, int], shared: bool
) -> None:
    import torch

    graph = Graph(batch, heads, LONGEST, shared)
    before = graph.replay(graph.rectangle)
    assert graph.wrong_rows(graph.rectangle) == 0
    for kept in KEPT:
        assert sum(kept) == 4 * BUDGET
        assert graph.wrong_rows(of(batch, kept)) == 0, kept
    assert torch.equal(graph.replay(graph.rectangle), before)


def test_what_the_bound_costs_a_rectangle(record_property: Callable[[str, object], None]) -> None:
    """Microseconds of three layers by graphs captured for WIDTH and for LONGEST, noted."""
    from triton.testing import do_bench

    for batch in (8, 64):
        for longest in (WIDTH, LONGEST):
            graph = Graph(batch, (32, 8), longest, shared=True)
            record_property(f"us_{batch}_{longest}", 1000 * do_bench(graph._graph.replay, return_mode="median"))
