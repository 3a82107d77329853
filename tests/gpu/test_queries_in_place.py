"""Queries read as rows with gaps between them: the same bits as from a copy, and one kernel less per layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.gpu.test_verify_schedule import HEAD_DIM, HEADS, KV_HEADS, problem, schedule


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
    gaps = with_gaps(inputs["q"])
    assert batch * width == 1 or not gaps.is_contiguous()
    for more in ({}, {"scheduler_metadata": schedule(inputs)}, {"num_splits": 1}):
        assert torch.equal(
            flash_attn_with_kvcache(**inputs, **more), flash_attn_with_kvcache(**{**inputs, "q": gaps}, **more)
        )


def test_how_long_the_copy_takes(record_property: Callable[[str, object], None]) -> None:
    """Recorded, not asserted, for a round of 64 requests without drafts."""
    from sgl_kernel.flash_attn import flash_attn_with_kvcache
    from triton.testing import do_bench

    inputs = problem(batch=64, width=1, seed=0)
    gaps = with_gaps(inputs.pop("q"))
    for name, query in (("with_copy_us", lambda: gaps.contiguous()), ("in_place_us", lambda: gaps)):
        call = lambda query=query: flash_attn_with_kvcache(q=query(), **inputs)  # noqa: E731
        record_property(name, 1000 * do_bench(call, return_mode="median"))
