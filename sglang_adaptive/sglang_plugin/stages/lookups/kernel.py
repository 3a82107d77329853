"""Tracks request text on the device and looks up the next drafts, with two kernels at the end of a round.

The first appends a round's accepted tokens and counts how many of the looked-up drafts were right. The second compares
the latest tokens with every earlier place, and with the request's sources: ranges of other texts in the same memory. It
writes what ``Lookup`` defines.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sglang_adaptive.policy.observation import Lookup
from sglang_adaptive.sglang_plugin.stages.fast_path.launches import launched

PLACE_BITS, RANK_BITS = 32, 16
"""A match, the rank of its text and its place are compared as one 63-bit number: longer matches win, then the own text
and earlier sources, then later places."""
COLUMNS = len(Lookup._fields)
"""Numbers that a round tells of a request."""
BLOCK = 1024
PROGRAMS = 132
"""Thread blocks that search a batch's texts at once."""


@launched
def append(  # type: ignore[no-untyped-def, unused-ignore]
    texts, stride, ends, slots, seq_lens, tokens, counts, drafts, matches, told,
    WIDTH: tl.constexpr, LANES: tl.constexpr, DRAFTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Append each request's new tokens, the first *counts* of its WIDTH *tokens*, to its text."""
    request = tl.program_id(0)
    slot = tl.load(slots + request)
    end = tl.load(seq_lens + request).to(tl.int32) + 1  # with the last token, whose KV the round wrote
    count, match = tl.load(counts + request).to(tl.int32), tl.load(matches + slot * 2)
    each = tl.arange(0, LANES)
    inside = each < count
    new = tl.load(tokens + request * WIDTH + each, mask=inside, other=0).to(tl.int32)
    draft = tl.load(drafts + slot * DRAFTS + each, mask=inside & (each < DRAFTS), other=-1)
    agreed = tl.min(tl.where(inside & (new == draft), LANES, each), 0)
    tl.store(texts + slot.to(tl.int64) * stride + end + each, new, mask=inside & (end + each < stride))
    tl.store(ends + slot, tl.minimum(end + count, stride))
    tl.store(told + request * COLUMNS, match)
    tl.store(told + request * COLUMNS + 1, tl.where(match > 0, tl.minimum(agreed, count), 0))
    tl.store(told + request * COLUMNS + 3, tl.load(matches + slot * 2 + 1))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _search(  # type: ignore[no-untyped-def, unused-ignore]
    found, texts, begin, end, rank, own, last, token, before, part, parts,
    BLOCK: tl.constexpr, SHORTEST: tl.constexpr, LONGEST: tl.constexpr, PLACE_BITS: tl.constexpr,
    RANK_BITS: tl.constexpr,
):  # fmt: skip
    """Return *found*, or what is better of the places from *begin* to *end*, by lane."""
    for first in range(begin + part * BLOCK, end, parts * BLOCK):
        place = first + tl.arange(0, BLOCK)
        alike = tl.load(texts + place, mask=place < end, other=-2) == token
        alike = alike & (tl.load(texts + place - 1, mask=(place > begin) & (place < end), other=-2) == before)
        match = tl.where(alike, 2, 0)
        back = 2
        while (back < LONGEST) & (tl.max(alike.to(tl.int32), 0) > 0):
            wanted = tl.load(own + last - back, mask=back <= last, other=-4)
            alike = alike & (tl.load(texts + place - back, mask=alike & (place - back >= begin), other=-2) == wanted)
            match += alike.to(tl.int32)
            back += 1
        key = (((match.to(tl.int64) << RANK_BITS) | rank) << PLACE_BITS) | place
        found = tl.maximum(found, tl.where(match >= SHORTEST, key, 0))
    return found


@launched
def look_up(  # type: ignore[no-untyped-def, unused-ignore]
    texts, stride, ends, slots, drafts, matches, told, best, done, parts, sources,
    BLOCK: tl.constexpr, SHORTEST: tl.constexpr, LONGEST: tl.constexpr, DRAFTS: tl.constexpr, PLACE_BITS: tl.constexpr,
    RANK_BITS: tl.constexpr, SOURCES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write the drafts after each text, and the match before them with whether it is from a source."""
    request, part = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + request)
    row = slot * stride
    own, last = texts + row, tl.load(ends + slot) - 1
    token, before = tl.load(own + last), tl.load(own + last - 1, mask=last > 0, other=-4)
    found = _search(
        tl.zeros((BLOCK,), tl.int64), texts, row, row + last, SOURCES, own, last, token, before, part, parts,
        BLOCK, SHORTEST, LONGEST, PLACE_BITS, RANK_BITS,
    )  # fmt: skip
    ranges = sources + request * (SOURCES + 1) * 2 + 2  # after their number
    for source in range(tl.load(ranges - 2)):
        begin, end = tl.load(ranges + source * 2), tl.load(ranges + source * 2 + 1)
        end = tl.where(end < 0, -end * stride - stride + tl.load(ends - end - 1, mask=end < 0, other=0), end)
        # Another block begins each source, so that the programs share many short ones.
        found = _search(
            found, texts, begin, end - 1, SOURCES - 1 - source, own, last, token, before, (part + source) % parts,
            parts, BLOCK, SHORTEST, LONGEST, PLACE_BITS, RANK_BITS,
        )  # fmt: skip
    tl.atomic_max(best + request, tl.max(found, 0))
    if tl.atomic_add(done + request, 1) == parts - 1:  # this program is the last one of its request
        key = tl.atomic_max(best + request, 0)
        place = (key & ((1 << PLACE_BITS) - 1)).to(tl.int32)
        rank = ((key >> PLACE_BITS) & ((1 << RANK_BITS) - 1)).to(tl.int32)
        match = (key >> (PLACE_BITS + RANK_BITS)).to(tl.int32)
        remembered = (match > 0) & (rank < SOURCES)
        end = tl.load(ranges + (SOURCES - 1 - rank) * 2 + 1, mask=remembered, other=0)
        end = tl.where(end < 0, -end * stride - stride + tl.load(ends - end - 1, mask=end < 0, other=0), end)
        each = tl.arange(0, DRAFTS)
        after = place + 1 + tl.where(remembered, each, each % tl.maximum(row + last - place, 1))
        copied = tl.load(texts + after, mask=(match > 0) & ((rank == SOURCES) | (after < end)), other=0)
        # A place whose token is unknown gets a valid token.
        tl.store(drafts + slot * DRAFTS + each, tl.maximum(copied, 0))
        tl.store(matches + slot * 2, match)
        tl.store(matches + slot * 2 + 1, remembered.to(tl.int32))
        tl.store(told + request * COLUMNS + 2, match)
        tl.store(told + request * COLUMNS + 4, remembered.to(tl.int32))
        tl.store(best + request, 0)
        tl.store(done + request, 0)
