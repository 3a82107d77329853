"""Packs the verified tokens of a batch, ranked by the chance that the target accepts them, and spreads the results."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor


def ranks(chances: Tensor) -> Tensor:
    """Return the rank of each draft in the batch, 0 for the likeliest, int64 [requests, steps].

    *chances* [requests, steps] are the draft's for its tokens. A draft is accepted only if those before it are, so it
    is ranked by the product up to it. Ties go to the shallower draft, then to the earlier request. Products never grow
    along a chain, so its best ranks form a prefix. Chances are clamped to [0, 1]; NaN counts as 0. Nothing waits for
    the device.
    """
    requests, steps = chances.shape
    # Step by step, so that a stable sort keeps ties in order of depth.
    products = chances.float().nan_to_num(nan=0.0).clamp(0.0, 1.0).t().contiguous().cumprod(0)
    order = products.view(-1).argsort(descending=True, stable=True)
    places = torch.arange(requests * steps, device=chances.device)
    return torch.empty_like(order).scatter_(0, order, places).view(steps, requests).t()


def prefixes(ranked: Tensor, budget: int) -> Tensor:
    """Return how many drafts of each request are among the first `requests * budget` of *ranked*, int64 [requests].

    *ranked* [requests, steps] are from `ranks`. Needs 0 <= *budget* <= steps.
    """
    return (ranked < ranked.shape[0] * budget).sum(1)


# Packs the verified tokens of a rectangle [requests, tokens], and spreads what the target returns for them.
#
# SGLang's acceptance, logprobs, grammar and draft extend expect `width` = steps + 1 tokens per request: its last token
# and all drafts. The target reads only the first `lengths[i]` of them, request after request.


@dataclass(frozen=True, slots=True)
class Packing:
    """The packed tokens of a batch.

    `lengths` int32 [requests]: verified tokens of each request, 1 to `width`; `starts` int32 [requests + 1]: the first
    packed token of each request, then their number; `places` int64 [tokens]: the index of each packed token in the
    flat rectangle, ascending.
    """

    width: int
    lengths: Tensor
    starts: Tensor
    places: Tensor

    @classmethod
    def of(cls, kept: Tensor, steps: int, tokens: int) -> Packing:
        """Return the packing of a batch that verifies *kept* [requests] of *steps* drafts each, *tokens* in all.

        The caller knows *tokens* = requests + sum of *kept*, so nothing waits for the device.
        """
        lengths = (kept + 1).to(torch.int32)
        starts = torch.zeros(len(kept) + 1, dtype=torch.int32, device=kept.device)
        starts[1:] = lengths.cumsum(0)
        requests = torch.arange(len(kept), device=kept.device)
        owners = requests.repeat_interleave(lengths, output_size=tokens)
        within = torch.arange(tokens, device=kept.device) - starts[owners]
        return cls(steps + 1, lengths, starts, owners * (steps + 1) + within)

    def pack(self, rectangle: Tensor) -> Tensor:
        """Return the verified rows of *rectangle* [requests * width, ...], [tokens, ...]."""
        return rectangle[self.places]

    def spread(self, packed: Tensor) -> Tensor:
        """Return *packed* [tokens, ...] as a rectangle [requests * width, ...], with zeros for absent drafts."""
        rectangle = packed.new_zeros(len(self.lengths) * self.width, *packed.shape[1:])
        return rectangle.index_copy_(0, self.places, packed)

    def cut(self, next_token: Tensor) -> None:
        """End every chain of *next_token* [requests, width] at its last verified token, in place.

        These are SGLang's links from each token to the draft after it, -1 for none. A draft without a link to it is
        neither accepted nor seen by a grammar; its token is drawn as after any chain that ends there.
        """
        columns = torch.arange(self.width, device=next_token.device)
        next_token.masked_fill_(columns >= self.lengths[:, None] - 1, -1)


def packed_input(verify_input: Any, packing: Packing, slots: Tensor, padded_tokens: int) -> Any:
    """Return *verify_input* as the target reads it: packed, with SGLang's layout of query lengths.

    *slots* [requests * width] are the KV slots of the rectangle. The tokens up to *padded_tokens* are split equally
    over a graph's unused requests. On a GPU the draft has planned the rectangle's slots (`kv_loc_plan`); without that
    plan SGLang plans the packed slots for this pass.
    """
    packed = dataclasses.replace(
        verify_input,
        draft_token=packing.pack(verify_input.draft_token),
        positions=packing.pack(verify_input.positions),
        prepared_out_cache_loc=packing.pack(slots),
        # The mean, from which SGLang finds the graph and the number of tokens.
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
    """Return a RaggedVerifyLayout whose padding compiles no kernel during serving.

    SGLang's compiles a Triton kernel per power of two of requests, and the first round of each would wait for it.
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
