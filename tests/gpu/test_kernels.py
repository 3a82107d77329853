"""Kernels compute on a device what SGLang's code or torch does; the times of two are recorded, not asserted."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import pytest

from tests import checks

MODULES = [f"{name}_checks" for name in ("graph_input", "greedy", "layer", "metadata", "penalty")]


@pytest.mark.parametrize(("module", "check"), [(name, check) for name in MODULES for check in checks.named_in(name)])
def test_it_holds_on_a_device(module: str, check: str) -> None:
    getattr(import_module(f"tests.{module}"), check)()


@pytest.mark.parametrize("requests", [1, 8, 64])
def test_the_likeliest_of_a_large_vocabulary(requests: int, record_property: Callable[[str, object], None]) -> None:
    """Matches torch.argmax."""
    import torch
    from triton.testing import do_bench

    from sglang_adaptive.sglang_plugin.stages.fast_path import greedy

    logits = torch.randn(requests, 128_256, device="cuda").to(torch.bfloat16)
    for name, run in (("torch_us", lambda: torch.argmax(logits, dim=-1)), ("ours_us", lambda: greedy.choose(logits))):
        record_property(name, 1000 * do_bench(run, return_mode="median"))
    assert torch.equal(greedy.choose(logits)[0].to(torch.int64), torch.argmax(logits, dim=-1))


def test_a_round_is_told_by_fewer_blocks(record_property: Callable[[str, object], None]) -> None:
    """Same result for 64 requests at a context of 131,072 tokens."""
    import torch
    from sglang.kernels.ops.attention.metadata import normal_decode_set_metadata
    from triton.testing import do_bench

    from sglang_adaptive.sglang_plugin.stages.fast_path import length_kernel

    width = 131_072
    table = torch.randint(0, 10**6, (70, width), dtype=torch.int32, device="cuda")
    rows, lens = torch.randperm(70, device="cuda")[:64], torch.randint(1, 600, (64,), device="cuda")
    shapes = ((64,), (65,), (64, width))
    told = [[torch.zeros(shape, dtype=torch.int32, device="cuda") for shape in shapes] for _ in range(2)]
    theirs = (*told[0], table, rows, width, lens, 4, 1)
    mine = (*told[1], table, rows, lens, 4, 1, width)
    for name, run in (
        ("sglang_us", lambda: normal_decode_set_metadata(*theirs)),
        ("ours_us", lambda: length_kernel.fill(*mine)),
    ):
        record_property(name, 1000 * do_bench(run, return_mode="median"))
    assert all(torch.equal(one, other) for one, other in zip(*told, strict=True))
