"""What the draft sees of a long request, its first tokens (sinks) and a window of its latest ones, and by which rows.

SGLang keeps the KV slot of each token of a request in a row of one table, and every attention backend reads a request
as a row and a length. So a long request gets a second row, in the lower half of a table with twice the rows: the slots
of its sinks, and right behind them those of its window. To the draft's backends it is then another, shorter request,
in CUDA graphs too. Rows are rewritten on the device before each pass of the draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sglang_adaptive.sglang_plugin.configuration import configuration

SINKS = 64
"""First tokens that the draft always sees; more with larger pages of KV slots, whole pages.

SmolLM2's draft brings 1% to 4% more tokens a round with 64 than with 4, at 3,000 tokens and as many seen in all."""


def sinks_of(page: int) -> int:
    """Return the sinks of a request, with pages of *page* KV slots."""
    return -(-SINKS // page) * page


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests of up to *whole* tokens are seen whole; of longer ones the draft sees *sinks* + *window* tokens or more.

    What is left out between the two is a multiple of *page*, so that a page of KV slots stays a page.
    """

    whole: int
    window: int
    sinks: int
    """A multiple of *page*."""
    page: int
    ahead: int
    """Places behind a request's tokens that a round writes to: the most tokens that it verifies."""

    @classmethod
    def of(cls, trained: int, window: int, page: int, ahead: int) -> Shape:
        """Return the shape for a draft that was trained on *trained* tokens."""
        return cls(trained, window, sinks_of(page), page, ahead)

    @property
    def width(self) -> int:
        """The most places of a shortened request, those of a round included."""
        return self.sinks + self.window + self.page - 1 + self.ahead

    def left_out(self, length: Any) -> Any:
        """Return how many tokens the draft does not see of a request of *length*, or of several in a tensor."""
        between = (length - self.window) // self.page * self.page - self.sinks
        return between * (length > self.whole)


def double_if_asked(pool: Any) -> None:
    """Give *pool*, a new ReqToTokenPool of SGLang, as many rows again where the draft is to have a window."""
    if configuration().draft_window is not None:
        pool.req_to_token = torch.cat([pool.req_to_token, torch.zeros_like(pool.req_to_token)])


def are_doubled(pool: Any) -> bool:
    """Whether *pool* has rows for what the draft sees."""
    return bool(pool.req_to_token.shape[0] == 2 * pool._alloc_size)


@dataclass(frozen=True, slots=True)
class Seen:
    """A batch as the draft's attention sees it; new tensors of [requests]."""

    rows: Tensor
    lengths: Tensor
    prefixes: Tensor | None
    """Tokens before those that the pass extends by; None where it decodes."""
    left: Tensor
    """Tokens that are left out of each request."""


def shortened(
    table: Tensor, rows: Tensor, lengths: Tensor, prefixes: Tensor | None, shape: Shape, first_slot: int
) -> Seen:
    """Write the draft's row of each long request of a batch into *table*, and return what stands for the batch.

    *table* [2 R, columns] int32 has the slots of row r's request in row r, and gets those that the draft sees in row
    R + r; *rows* [requests]; *lengths* [requests] as the pass's attention is given them; *prefixes* [requests], the
    tokens before the pass, where *lengths* include those that it writes. The sinks of row r are from slot *first_slot*
    + r * sinks on.
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
