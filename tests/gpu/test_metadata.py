"""fa3 gets the same lengths and page tables as from SGLang, by kernels on a device."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import checks


@pytest.mark.parametrize("check", checks.named_in("metadata_checks"))
def test_it_tells_what_sglang_tells(check: str) -> None:
    from tests import metadata_checks

    getattr(metadata_checks, check)()


def test_a_round_is_told_by_fewer_blocks(record_property: Callable[[str, object], None]) -> None:
    """Same result for 64 requests at a context of 131,072 tokens; the times are recorded, not asserted."""
    import torch
    from sglang.kernels.ops.attention.metadata import normal_decode_set_metadata
    from triton.testing import do_bench

    from sglang_adaptive.sglang_plugin.stages.fast_path import length_kernel

    width = 131_072
    table = torch.randint(0, 10**6, (70, width), dtype=torch.int32, device="cuda")
    rows, lens = torch.randperm(70, device="cuda")[:64], torch.randint(1, 600, (64,), device="cuda")
    told = [
        (
            torch.empty(64, dtype=torch.int32, device="cuda"),
            torch.empty(65, dtype=torch.int32, device="cuda"),
            torch.zeros(64, width, dtype=torch.int32, device="cuda"),
        )
        for _ in range(2)
    ]
    theirs = (*told[0], table, rows, width, lens, 4, 1)
    mine = (*told[1], table, rows, lens, 4, 1, width)
    for name, run in (
        ("sglang_us", lambda: normal_decode_set_metadata(*theirs)),
        ("ours_us", lambda: length_kernel.fill(*mine)),
    ):
        record_property(name, 1000 * do_bench(run, return_mode="median"))
    assert all(torch.equal(one, other) for one, other in zip(*told, strict=True))
