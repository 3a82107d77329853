"""SGLang's verify input as the target reads it in a packed pass."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from sglang_adaptive.sglang_plugin.verify_budget.packing import Packing

if TYPE_CHECKING:
    from torch import Tensor


def packed_input(verify_input: Any, packing: Packing, slots: Tensor, padded_tokens: int) -> Any:
    """Return *verify_input* as the target reads it: packed, with SGLang's layout of query lengths.

    *slots* [requests * width] are the KV slots of the rectangle. The tokens up to *padded_tokens* belong to the unused
    requests of a graph, as many to each. On a GPU the draft has made a plan of the rectangle's slots (`kv_loc_plan`);
    without it SGLang makes one of the packed slots for this pass.
    """
    packed = dataclasses.replace(
        verify_input,
        draft_token=packing.pack(verify_input.draft_token),
        positions=packing.pack(verify_input.positions),
        prepared_out_cache_loc=packing.pack(slots),
        # The mean, by which SGLang finds the graph and the number of tokens.
        draft_token_num=len(packing.places) // len(packing.lengths),
        num_tokens_per_req=-1,
        kv_loc_plan=None,
    )
    packed.ragged_verify_layout = _layout_class()(
        verify_lens=packing.lengths,
        graph_num_tokens=padded_tokens,
        extend_start_loc=packing.starts[:-1],
        qo_indptr_device=packing.starts,
        total_verify_tokens=len(packing.places),
    )
    return packed


@cache
def _layout_class() -> Any:
    """Return SGLang's RaggedVerifyLayout, whose padding compiles no kernel while the server serves.

    SGLang's own has a Triton kernel for each power of two of requests, which the first such round would wait for.
    """
    from sglang.srt.speculative.ragged_verify import RaggedVerifyLayout

    class Layout(RaggedVerifyLayout, frozen=True):  # type: ignore[call-arg, misc, unused-ignore]
        def padded_to_bucket(self, *, padded_bs: int, cap: int | None = None) -> Any:
            unused = padded_bs - self.bs
            if not unused:
                return self
            each = (self.graph_num_tokens - self.total_verify_tokens) // unused
            ends = self.qo_indptr_device
            more = torch.arange(each, each * unused + 1, each, dtype=ends.dtype, device=ends.device)
            return type(self)(
                verify_lens=torch.cat([self.verify_lens, self.verify_lens.new_full((unused,), each)]),
                graph_num_tokens=self.graph_num_tokens,
                extend_start_loc=torch.cat([ends, ends[-1:] + more[:-1]]),
                qo_indptr_device=torch.cat([ends, ends[-1:] + more]),
                total_verify_tokens=self.graph_num_tokens,
            )

    return Layout
