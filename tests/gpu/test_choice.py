"""Greedy rounds choose and accept the same as SGLang's verify, with kernels on a device."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import checks


@pytest.mark.parametrize("check", checks.named_in("greedy_checks"))
def test_it_chooses_what_sglang_chooses(check: str) -> None:
    from tests import greedy_checks

    getattr(greedy_checks, check)()


@pytest.mark.parametrize("requests", [1, 8, 64])
def test_the_likeliest_of_a_large_vocabulary(requests: int, record_property: Callable[[str, object], None]) -> None:
    """Matches torch.argmax; the times are recorded, not asserted."""
    import torch
    from triton.testing import do_bench

    from sglang_adaptive.sglang_plugin.stages.fast_path import greedy

    logits = torch.randn(requests, 128_256, device="cuda").to(torch.bfloat16)
    for name, run in (("torch_us", lambda: torch.argmax(logits, dim=-1)), ("ours_us", lambda: greedy.choose(logits))):
        record_property(name, 1000 * do_bench(run, return_mode="median"))
    assert torch.equal(greedy.choose(logits)[0].to(torch.int64), torch.argmax(logits, dim=-1))
