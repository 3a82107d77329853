"""The kernel for chains on SGLang's Triton backend matches SGLang's prefill kernel on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

BATCHES = {1: 500, 8: 450, 64: 450, 2: 30_000}
"""Requests, and the tokens of each."""


@pytest.mark.parametrize("requests", BATCHES)
@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_it_writes_what_the_prefill_kernel_writes(
    width: int, requests: int, record_property: Callable[[str, object], None]
) -> None:
    """On an 8B Llama's shape; records the microseconds of both, and of SGLang's kernel for AMD's GPUs."""
    import torch
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd
    from sglang.kernels.ops.attention.verify_mla import verify_shared_kv_fwd
    from triton.testing import do_bench

    from sglang_adaptive.sglang_plugin.stages.fast_path.chain_kernel import attend

    def drawn(tokens: int, heads: int) -> torch.Tensor:
        return torch.randn(tokens, heads, 128, device="cuda", dtype=torch.bfloat16)

    torch.manual_seed(3)
    tokens, length, scale = requests * width, BATCHES[requests], 128**-0.5
    queries, new_keys, new_values = drawn(tokens, 32), drawn(tokens, 8), drawn(tokens, 8)
    keys, values = drawn(requests * length, 8), drawn(requests * length, 8)
    slots = torch.randperm(requests * length, device="cuda")
    ends, query_ends = (torch.arange(requests + 1, device="cuda") * each for each in (length, width))
    found, wanted = torch.empty_like(queries), torch.empty_like(queries)
    processors = torch.cuda.get_device_properties("cuda").multi_processor_count

    def mine() -> None:
        attend(queries, new_keys, new_values, found, keys, values, ends, slots, scale, processors)

    given = (queries, new_keys, new_values, wanted, keys, values, query_ends, ends, slots, None, True, None, width)

    def theirs() -> None:
        extend_attention_fwd(*given, 1.0, 1.0, sm_scale=scale)

    def theirs_for_amd() -> None:
        assert verify_shared_kv_fwd(*given, 1.0, 1.0, sm_scale=scale)

    mine()
    theirs()
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-3)
    for name, run in (("us", mine), ("us_of_sglang", theirs), ("us_of_sglang_for_amd", theirs_for_amd)):
        record_property(name, round(1000 * do_bench(run, return_mode="median"), 1))


def test_other_shapes() -> None:
    """Groups and head sizes that do not fill a block."""
    import torch

    from tests.chain_kernel_checks import SHAPES, attended

    for shape in SHAPES:
        found, wanted = attended(shape, torch.float32, "cuda")
        torch.testing.assert_close(found, wanted, rtol=0, atol=2e-2)  # products in TF32
