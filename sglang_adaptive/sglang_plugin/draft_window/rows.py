"""Limits what the draft sees of a long request to its first tokens (sinks) and a window of its latest ones.

SGLang keeps the KV slots of a request's tokens in one row of a table, and every attention backend reads a request as a
row and a length. So a long request gets a second row, in the lower half of a table with twice the rows: the slots of
its sinks, followed by those of its window. To the draft's backends it is then a shorter request, in CUDA graphs too.
Rows are rewritten on the device before each pass of the draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sglang_adaptive.policy.config import sinks_of
from sglang_adaptive.sglang_plugin.configuration import configuration


@dataclass(frozen=True, slots=True)
class Shape:
    """The draft sees all of a request of up to *whole* tokens, and *sinks* + *window* tokens or more of a longer one.

    The tokens left out in between are a multiple of *page*, so that a page of KV slots stays a page.
    """

    whole: int
    window: int
    sinks: int
    """A multiple of *page*."""
    page: int
    ahead: int
    """Places after a request's tokens that a round writes to: the most tokens that it verifies."""

    @classmethod
    def of(cls, trained: int, window: int, page: int, ahead: int) -> Shape:
        """Return the shape for a draft that was trained on *trained* tokens."""
        return cls(trained, window, sinks_of(page), page, ahead)

    @property
    def width(self) -> int:
        """The most places of a shortened request, including those of a round."""
        return self.sinks + self.window + self.page - 1 + self.ahead

    def left_out(self, length: Any) -> Any:
        """Return how many tokens of a request of *length*, a number or a tensor, the draft does not see."""
        between = (length - self.window) // self.page * self.page - self.sinks
        return between * (length > self.whole)


def double_if_asked(pool: Any) -> None:
    """Double the rows of *pool*, a new ReqToTokenPool of SGLang, if the draft gets a window."""
    if configuration().draft_window is not None:
        pool.req_to_token = torch.cat([pool.req_to_token, torch.zeros_like(pool.req_to_token)])


def are_doubled(pool: Any) -> bool:
    """Whether *pool* has rows for the draft's view."""
    return bool(pool.req_to_token.shape[0] == 2 * pool._alloc_size)


@dataclass(frozen=True, slots=True)
class Seen:
    """A batch as the draft's attention sees it, in new tensors of [requests]."""

    rows: Tensor
    lengths: Tensor
    prefixes: Tensor | None
    """Tokens before those of the pass if it extends; None if it decodes."""
    left: Tensor
    """Tokens left out of each request."""


def shortened(
    table: Tensor, rows: Tensor, lengths: Tensor, prefixes: Tensor | None, shape: Shape, first_slot: int
) -> Seen:
    """Write the draft's row of each long request of a batch into *table*, and return the batch as the draft sees it.

    *table* [2 R, columns] int32 has the slots of row r's request in row r, and gets those that the draft sees in row
    R + r; *rows* [requests]; *lengths* [requests] as passed to the attention; *prefixes* [requests], the tokens before
    the pass, where *lengths* include those that it writes. The sinks of row r start at slot *first_slot* + r * sinks.
    """
    if table.is_cuda:
        from sglang_adaptive.sglang_plugin.draft_window import kernel

        return Seen(*kernel.shortened(table, rows, lengths, prefixes, shape, first_slot))
    left = shape.left_out(lengths if prefixes is None else prefixes).to(lengths.dtype)
    columns = torch.arange(shape.width)
    recent = table[rows.long()[:, None], (columns + left[:, None]).clamp_(max=table.shape[1] - 1)]
    slots = torch.where(columns < shape.sinks, first_slot + rows[:, None] * shape.sinks + columns, recent)
    long = left > 0
    second = rows + table.shape[0] // 2
    table[second[long].long()[:, None], columns] = slots[long].to(table.dtype)
    return Seen(
        torch.where(long, second, rows),
        lengths - left,
        None if prefixes is None else prefixes - left.to(prefixes.dtype),
        left,
    )
