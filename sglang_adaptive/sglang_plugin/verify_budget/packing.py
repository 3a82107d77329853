"""Packs the verified tokens of a rectangle of requests and tokens, and spreads what the target returns for them.

SGLang's acceptance, logprobs, grammar and draft extend expect `width` = steps + 1 tokens of every request: its last
token and all drafts. The target reads each request's first `lengths[i]` of them, request after request.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Packing:
    """The packed tokens of a batch.

    `lengths` int32 [requests]: verified tokens of each request, 1 to `width`; `starts` int32 [requests + 1]: the first
    packed token of each request, then their number; `places` int64 [tokens]: where each packed token stands in the
    flat rectangle, ascending.
    """

    width: int
    lengths: Tensor
    starts: Tensor
    places: Tensor

    @classmethod
    def of(cls, kept: Tensor, steps: int, tokens: int) -> Packing:
        """Return the packing of batches that verify *kept* [requests] of *steps* drafts each, *tokens* in all.

        The caller knows *tokens* = requests + sum of *kept*; so nothing waits for the device.
        """
        lengths = (kept + 1).to(torch.int32)
        starts = torch.zeros(len(kept) + 1, dtype=torch.int32, device=kept.device)
        starts[1:] = lengths.cumsum(0)
        requests = torch.arange(len(kept), device=kept.device)
        owners = requests.repeat_interleave(lengths, output_size=tokens)
        within = torch.arange(tokens, device=kept.device) - starts[owners]
        return cls(steps + 1, lengths, starts, owners * (steps + 1) + within)

    def pack(self, rectangle: Tensor) -> Tensor:
        """Return the rows of *rectangle* [requests * width, ...] that are verified, [tokens, ...]."""
        return rectangle[self.places]

    def spread(self, packed: Tensor) -> Tensor:
        """Return *packed* [tokens, ...] as a rectangle [requests * width, ...], with zeros for absent drafts."""
        rectangle = packed.new_zeros(len(self.lengths) * self.width, *packed.shape[1:])
        return rectangle.index_copy_(0, self.places, packed)

    def cut(self, next_token: Tensor) -> None:
        """End every chain of *next_token* [requests, width] at its last verified token, in place.

        These are SGLang's links, from each token to the draft after it, -1 for none. A draft without a link to it is
        neither accepted nor seen by a grammar, and the token in its stead is drawn as after any chain that ends there.
        """
        columns = torch.arange(self.width, device=next_token.device)
        next_token.masked_fill_(columns >= self.lengths[:, None] - 1, -1)
