"""Applies penalties to the rows of a chain's verify with one kernel, and counts its accepted tokens with another.

Few tokens of a vocabulary are in a request's text. So the sums are read whole, but logits only where there is a
penalty. `penalties.py` has the same in torch, for trees of drafts and for a CPU.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from sglang_adaptive.sglang_plugin.stages.fast_path.launches import Launches

PARTS, BLOCK, MOST = 32, 1024, 64
"""Thread blocks of a row, entries that one has at a time, and tokens that a request can accept in a round."""

_POINTERS = ("logits", "table", "whole", "each", "drafts", "positions", "stops")


@triton.jit(  # type: ignore[untyped-decorator, unused-ignore]
    do_not_specialize=["row_stride", "width", "requests", "vocabulary", "listed"],
    do_not_specialize_on_alignment=_POINTERS,
)
def _penalized_rows(  # type: ignore[no-untyped-def, unused-ignore]
    logits, row_stride, width, requests, vocabulary, table, whole, each, drafts, positions, stops, listed,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    request = row // width
    at = tl.load(whole + request)
    listed = tl.where(tl.load(whole + requests + request) > tl.load(positions + row), listed, 0)
    if (at > 0) | (listed > 0):
        frequency, presence = tl.load(each + request), tl.load(each + requests + request)
        repetition, unit = tl.load(each + 2 * requests + request), tl.load(each + 3 * requests + request)
        share = tl.cdiv(vocabulary, PARTS)
        begin = part * share
        end = tl.minimum(begin + share, vocabulary)
        for first in range(begin, end, BLOCK):
            here = first + tl.arange(0, BLOCK)
            sums = tl.load(table + at * vocabulary + here, mask=here < end, other=0.0)
            for node in range(request * width, row + 1):
                sums = tl.where(here == tl.load(drafts + node), sums + unit, sums)
            stopped = here < 0
            for place in range(request * listed, (request + 1) * listed):
                stopped = stopped | (here == tl.load(stops + place))
            seen = sums != 0.0
            touched = (seen | stopped) & (here < end)
            old = tl.load(logits + row * row_stride + here, mask=touched, other=0.0)
            spent = tl.where(frequency != 0.0, sums, 0.0) + tl.where(seen, presence, 0.0)
            new = old - tl.where(stopped, float("inf"), spent)
            factor = tl.where(seen, repetition, 1.0)
            new = tl.where(new < 0.0, new * factor, new / factor)
            tl.store(logits + row * row_stride + here, new, mask=touched)


@triton.jit(  # type: ignore[untyped-decorator, unused-ignore]
    do_not_specialize=["requests", "vocabulary", "depth"],
    do_not_specialize_on_alignment=["table", "whole", "each", "drafts", "index"],
)
def _counted_tokens(  # type: ignore[no-untyped-def, unused-ignore]
    table, whole, each, requests, vocabulary, drafts, index, depth, MOST: tl.constexpr
):  # fmt: skip
    request = tl.program_id(0)
    at = tl.load(whole + request)
    lane = tl.arange(0, MOST)
    node = tl.load(index + request * depth + lane, mask=lane < depth, other=-1)
    kept = (node >= 0) & (at > 0)
    token = tl.load(drafts + node, mask=kept, other=0)
    unit = tl.load(each + 3 * requests + request)
    # All terms of an entry are equal, so their order does not matter.
    tl.atomic_add(table + at * vocabulary + token, tl.zeros([MOST], tl.float32) + unit, mask=kept)


_launch_penalized_rows, _launch_counted_tokens = Launches(_penalized_rows), Launches(_counted_tokens)


def penalize(
    logits: Tensor, width: int, table: Tensor, whole: Tensor, each: Tensor, drafts: Tensor, positions: Tensor,
    stops: Tensor | None,
) -> None:  # fmt: skip
    """Add penalties to float32 *logits* [requests * width, vocabulary], rows dense, in place; see `penalties.Batch`.

    *drafts* and *positions* are [requests * width]. Nothing waits for the device.
    """
    rows, vocabulary = logits.shape
    listed = 0 if stops is None else stops.shape[1]
    _launch_penalized_rows(
        (drafts.dtype, positions.dtype), (rows, PARTS), logits, logits.stride(0), width, whole.shape[1],
        vocabulary, table, whole, each, drafts, positions, whole if stops is None else stops, listed, PARTS, BLOCK,
    )  # fmt: skip


def count(table: Tensor, whole: Tensor, each: Tensor, drafts: Tensor, index: Tensor) -> None:
    """Add the tokens of *drafts* at *index* [requests, depth], -1 for none, to *table*; depth is at most MOST."""
    requests, depth = index.shape
    _launch_counted_tokens(
        (drafts.dtype, index.dtype), (requests, 1), table, whole, each, requests, table.shape[1], drafts, index, depth,
        MOST,
    )  # fmt: skip
