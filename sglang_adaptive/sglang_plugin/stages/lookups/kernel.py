"""Tracks request text on the device and looks up the next drafts, with two kernels at the end of a round.

The first appends a round's accepted tokens and counts how many of the looked-up drafts were right. The second compares
the latest tokens with every earlier place. It writes what ``sglang_adaptive.lookup`` defines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from sglang_adaptive.lookup import DRAFTS, LONGEST, SHORTEST
from sglang_adaptive.sglang_plugin.stages.fast_path.launches import Launches

if TYPE_CHECKING:
    from torch import Tensor

PLACE_BITS = 24
"""A match and its place are compared as one 31-bit number: longer matches win, then later places."""
BLOCK = 1024
PROGRAMS = 132
"""Thread blocks that search a batch's texts at once."""

_POINTERS = ("texts", "ends", "slots", "seq_lens", "tokens", "counts", "drafts", "matches", "told", "best", "done")
_NUMBERS = ("stride", "parts")


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=_POINTERS)  # type: ignore[untyped-decorator, unused-ignore]
def _append(  # type: ignore[no-untyped-def, unused-ignore]
    texts, stride, ends, slots, seq_lens, tokens, counts, drafts, matches, told,
    WIDTH: tl.constexpr, LANES: tl.constexpr, DRAFTS: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    slot = tl.load(slots + request)
    end = tl.load(seq_lens + request).to(tl.int32) + 1  # with the last token, whose KV the round wrote
    count, match = tl.load(counts + request).to(tl.int32), tl.load(matches + slot)
    each = tl.arange(0, LANES)
    inside = each < count
    new = tl.load(tokens + request * WIDTH + each, mask=inside, other=0).to(tl.int32)
    draft = tl.load(drafts + slot * DRAFTS + each, mask=inside & (each < DRAFTS), other=-1)
    agreed = tl.min(tl.where(inside & (new == draft), LANES, each), 0)
    tl.store(texts + slot.to(tl.int64) * stride + end + each, new, mask=inside & (end + each < stride))
    tl.store(ends + slot, tl.minimum(end + count, stride))
    tl.store(told + request * 3, match)
    tl.store(told + request * 3 + 1, tl.where(match > 0, tl.minimum(agreed, count), 0))


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=_POINTERS)  # type: ignore[untyped-decorator, unused-ignore]
def _look_up(  # type: ignore[no-untyped-def, unused-ignore]
    texts, stride, ends, slots, drafts, matches, told, best, done, parts,
    BLOCK: tl.constexpr, SHORTEST: tl.constexpr, LONGEST: tl.constexpr, DRAFTS: tl.constexpr, PLACE_BITS: tl.constexpr,
):  # fmt: skip
    request, part = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + request)
    text = texts + slot.to(tl.int64) * stride
    last = tl.load(ends + slot) - 1
    token, before = tl.load(text + last), tl.load(text + last - 1, mask=last > 0, other=-1)
    found = tl.zeros((BLOCK,), tl.int32)
    for first in range(part * BLOCK, last, parts * BLOCK):
        place = first + tl.arange(0, BLOCK)
        alike = tl.load(text + place, mask=place < last, other=-2) == token
        alike = alike & (tl.load(text + place - 1, mask=(place > 0) & (place < last), other=-2) == before)
        match = tl.where(alike, 2, 0)
        back = 2
        while (back < LONGEST) & (tl.max(alike.to(tl.int32), 0) > 0):
            wanted = tl.load(text + last - back, mask=back <= last, other=-1)
            alike = alike & (tl.load(text + place - back, mask=alike & (place >= back), other=-2) == wanted)
            match += alike.to(tl.int32)
            back += 1
        found = tl.maximum(found, tl.where(match >= SHORTEST, (match << PLACE_BITS) | place, 0))
    tl.atomic_max(best + request, tl.max(found, 0))
    if tl.atomic_add(done + request, 1) == parts - 1:  # this program is the last one of its request
        key = tl.atomic_max(best + request, 0)
        source = key & ((1 << PLACE_BITS) - 1)
        match = key >> PLACE_BITS
        each = tl.arange(0, DRAFTS)
        copied = tl.load(text + source + 1 + each % tl.maximum(last - source, 1), mask=match > 0, other=0)
        # A place whose token is unknown gets a valid token.
        tl.store(drafts + slot * DRAFTS + each, tl.maximum(copied, 0))
        tl.store(matches + slot, match)
        tl.store(told + request * 3 + 2, match)
        tl.store(best + request, 0)
        tl.store(done + request, 0)


_launch_append, _launch_look_up = Launches(_append), Launches(_look_up)


def append(
    texts: Tensor, ends: Tensor, slots: Tensor, seq_lens: Tensor, tokens: Tensor, counts: Tensor, drafts: Tensor,
    matches: Tensor, told: Tensor,
) -> None:  # fmt: skip
    """Append the tokens that a round of b requests accepted to their texts, rows *slots* of *texts*.

    *seq_lens* [b] are the tokens with KV before the round, one less than the known ones; *tokens* [b * width] hold each
    request's new tokens first, and *counts* [b] their number. *drafts* and *matches*, by slot, are from the previous
    lookup; the first two columns of *told* [b, 3] get the match and the number of leading drafts that equal the new
    tokens.
    """
    requests = slots.shape[0]
    width = tokens.shape[0] // requests
    _launch_append(
        (width, tokens.dtype, counts.dtype, seq_lens.dtype), (requests, 1), texts, texts.stride(0), ends, slots,
        seq_lens, tokens, counts, drafts, matches, told, width, triton.next_power_of_2(width), DRAFTS,
    )  # fmt: skip


def look_up(
    texts: Tensor, ends: Tensor, slots: Tensor, drafts: Tensor, matches: Tensor, told: Tensor, best: Tensor,
    done: Tensor, block: int = BLOCK, parts: int | None = None,
) -> None:  # fmt: skip
    """Write each text's next drafts and the match before them, which the third column of *told* gets as well.

    *best* and *done* [b or more] are zero before and after.
    """
    requests = slots.shape[0]
    parts = parts or max(1, PROGRAMS // requests)
    _launch_look_up(
        (block,), (requests, parts), texts, texts.stride(0), ends, slots, drafts, matches, told, best, done, parts,
        block, SHORTEST, LONGEST, DRAFTS, PLACE_BITS,
    )  # fmt: skip
