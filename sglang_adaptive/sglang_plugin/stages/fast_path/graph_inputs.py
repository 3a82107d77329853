"""Fills in all inputs of a round's graphs (draft, verify pass and draft extend), with one kernel per graph.

A request's row in the pool and its length determine the positions and slots of its tokens. SGLang 0.5.23 computes these
in separate kernels, copies each into the graph's buffers, and runs another kernel per draft pass for fa3's lengths,
prefix sums and page tables. Graph rows without a request get the same values as in SGLang.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from sglang_adaptive.sglang_plugin.stages.fast_path.launches import launched
from sglang_adaptive.sglang_plugin.stages.fast_path.length_kernel import BLOCK, PARTS, fill_pages, room


@launched
def _fill_verify(  # type: ignore[no-untyped-def, unused-ignore]
    tokens, rows, seq_lens, table, table_stride, table_width,
    to_tokens, to_positions, to_slots, to_rows, to_lengths, lengths, key_ends, page_table, page_stride,
    requests, padded, most_pages,
    WIDTH: tl.constexpr, LANES: tl.constexpr, MORE: tl.constexpr, FILLER: tl.constexpr, PAGE: tl.constexpr,
    REQUESTS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    request, part = tl.program_id(0), tl.program_id(1)
    live = request < requests
    length = tl.load(seq_lens + request, mask=live, other=FILLER).to(tl.int32)
    row = tl.load(rows + request, mask=live, other=0).to(tl.int64)
    slots = table + row * table_stride
    if part == 0:
        tl.store(to_rows + request, row)
        tl.store(to_lengths + request, length.to(tl.int64))
        place = tl.arange(0, LANES)
        inside = place < WIDTH
        token = request * WIDTH + place
        tl.store(
            to_tokens + token, tl.load(tokens + token, mask=inside & live, other=0).to(tl.int64), mask=inside & live
        )
        tl.store(to_positions + token, tl.where(live, length + place, 0).to(tl.int64), mask=inside)
        column = tl.minimum(length + place, table_width - 1)
        slot = tl.load(slots + column, mask=inside & live, other=0)
        tl.store(to_slots + token, slot.to(tl.int64), mask=inside)
        if request == 0:
            each = tl.arange(0, REQUESTS)
            all_lengths = tl.load(seq_lens + each, mask=each < requests, other=FILLER).to(tl.int32) + MORE
            all_lengths = tl.where(each < padded, all_lengths, 0)
            tl.store(lengths + each, all_lengths, mask=each < padded)
            tl.store(key_ends, 0)
            tl.store(key_ends + 1 + each, tl.cumsum(all_lengths, 0), mask=each < padded)
    fill_pages(slots, length + MORE, page_table, request, part, page_stride, most_pages, PAGE, BLOCK, PARTS)


@launched
def _fill_draft(  # type: ignore[no-untyped-def, unused-ignore]
    chosen, chances, rows, seq_lens, table, table_stride, table_width,
    to_chosen, to_chances, to_positions, to_slots, to_rows, to_lengths, addresses, page_table, page_stride,
    requests, padded, most_pages,
    STEPS: tl.constexpr, LANES: tl.constexpr, FILLER: tl.constexpr, PAGE: tl.constexpr, REQUESTS: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    request, part = tl.program_id(0), tl.program_id(1)
    live = request < requests
    length = tl.load(seq_lens + request, mask=live, other=FILLER).to(tl.int32)
    row = tl.load(rows + request, mask=live, other=0).to(tl.int64)
    slots = table + row * table_stride
    if part == 0:
        tl.store(to_rows + request, row)
        tl.store(to_lengths + request, length.to(tl.int64))
        tl.store(to_positions + request, tl.where(live, length, 0).to(tl.int64))
        tl.store(to_chosen + request, tl.load(chosen + request, mask=live, other=0))
        tl.store(to_chances + request, tl.load(chances + request, mask=live, other=0.0))
        step = tl.arange(0, LANES)
        column = tl.minimum(length + step, table_width - 1)
        slot = tl.load(slots + column, mask=(step < STEPS) & live, other=0)
        tl.store(to_slots + request * STEPS + step, slot.to(tl.int64), mask=step < STEPS)
        if request == 0:
            each = tl.arange(0, REQUESTS)
            inside = each < padded
            all_lengths = tl.load(seq_lens + each, mask=each < requests, other=FILLER).to(tl.int32)
            for one in tl.static_range(STEPS - 1):
                lengths = tl.load(addresses + one).to(tl.pointer_type(tl.int32))
                key_ends = tl.load(addresses + STEPS - 1 + one).to(tl.pointer_type(tl.int32))
                read = tl.where(inside, all_lengths + one + 1, 0)
                tl.store(lengths + each, read, mask=inside)
                tl.store(key_ends, 0)
                tl.store(key_ends + 1 + each, tl.cumsum(read, 0), mask=inside)
    fill_pages(slots, length + STEPS - 1, page_table, request, part, page_stride, most_pages, PAGE, BLOCK, PARTS)


@launched
def _fill_extend(  # type: ignore[no-untyped-def, unused-ignore]
    ids, correct, accepted, select, rows, seq_lens, table, table_stride, table_width,
    to_ids, to_correct, to_accepted, to_select, to_extended, to_positions, to_slots, to_rows, to_lengths, requests,
    WIDTH: tl.constexpr, LANES: tl.constexpr, FILLER: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    live = request < requests
    length = tl.load(seq_lens + request, mask=live, other=FILLER - WIDTH).to(tl.int32)
    row = tl.load(rows + request, mask=live, other=0).to(tl.int64)
    tl.store(to_rows + request, row)
    tl.store(to_lengths + request, (length + WIDTH).to(tl.int64))
    tl.store(to_extended + request, WIDTH)
    tl.store(to_correct + request, tl.load(correct + request, mask=live, other=WIDTH))
    tl.store(to_accepted + request, tl.load(accepted + request, mask=live, other=WIDTH))
    tl.store(to_select + request, tl.load(select + request, mask=live, other=0), mask=live)
    place = tl.arange(0, LANES)
    inside = place < WIDTH
    token = request * WIDTH + place
    tl.store(to_ids + token, tl.load(ids + token, mask=inside & live, other=0), mask=inside & live)
    tl.store(to_positions + token, tl.where(live, length + place, 0).to(tl.int64), mask=inside)
    column = tl.minimum(length + place, table_width - 1)
    slot = tl.load(table + row * table_stride + column, mask=inside & live, other=0)
    tl.store(to_slots + token, slot.to(tl.int64), mask=inside)


@launched
def _link(  # type: ignore[no-untyped-def, unused-ignore]
    last, drafts, drafts_stride, rows, seq_lens, table, table_stride, table_width,
    tokens, positions, links, slots, requests, WIDTH: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    length = tl.load(seq_lens + request).to(tl.int32)
    row = tl.load(rows + request).to(tl.int64)
    place = tl.arange(0, LANES)
    inside = place < WIDTH
    at = request * WIDTH + place
    draft = tl.load(drafts + request * drafts_stride + place - 1, mask=inside & (place > 0), other=0).to(tl.int64)
    tl.store(tokens + at, tl.where(place == 0, tl.load(last + request).to(tl.int64), draft), mask=inside)
    tl.store(positions + at, (length + place).to(tl.int64), mask=inside)
    tl.store(links + at, at.to(tl.int64), mask=inside)
    tl.store(links + requests * WIDTH + at, tl.where(place + 1 < WIDTH, place + 1, -1).to(tl.int64), mask=inside)
    tl.store(links + 2 * requests * WIDTH + at, tl.full([LANES], -1, tl.int64), mask=inside)
    slot = tl.load(table + row * table_stride + tl.minimum(length + place, table_width - 1), mask=inside, other=0)
    tl.store(slots + at, slot.to(tl.int64), mask=inside)


def fill_verify(
    buffers: Any, metadata: Any, tokens: Any, rows: Any, seq_lens: Any, table: Any, *, padded: int, width: int,
    more: int, filler: int, page: int, most_pages: int,
) -> None:  # fmt: skip
    """Fill in *buffers* and fa3's *metadata* for a verify pass of b requests, in a graph of *padded* requests.

    *tokens* are [b * width] int64, *rows* and *seq_lens* [b] int64: rows of *table* and lengths before the pass, which
    reads *more* tokens per request than that. *filler* is the length of rows without a request, *page* the tokens per
    page, *most_pages* the used width of the page table. Nothing waits for the device.
    """
    summed = room(padded)
    _fill_verify(
        (width, more, filler, page, summed, tokens.dtype), (padded, PARTS), tokens, rows, seq_lens, table,
        table.stride(0), table.shape[1], buffers.input_ids, buffers.positions, buffers.out_cache_loc,
        buffers.req_pool_indices, buffers.seq_lens, metadata.cache_seqlens_int32, metadata.cu_seqlens_k,
        metadata.page_table, metadata.page_table.stride(0), seq_lens.shape[0], padded, most_pages, width,
        triton.next_power_of_2(width), more, filler, page, summed, BLOCK, PARTS,
    )  # fmt: skip


def fill_draft(
    buffers: Any, addresses: Any, page_table: Any, chosen: Any, chances: Any, rows: Any, seq_lens: Any, table: Any, *,
    padded: int, steps: int, filler: int, page: int, most_pages: int,
) -> None:  # fmt: skip
    """Do the same for a draft of *steps* > 1 tokens; the first is *chosen* [b, 1] int64, with *chances* float32.

    *addresses* are int64 [2 * (steps - 1)]: of each pass's lengths, then of their prefix sums, both int32. All passes
    share one *page_table*.
    """
    summed = room(padded)
    _fill_draft(
        (steps, filler, page, summed), (padded, PARTS), chosen, chances, rows, seq_lens, table, table.stride(0),
        table.shape[1], buffers.topk_index, buffers.topk_p, buffers.positions, buffers.out_cache_loc,
        buffers.req_pool_indices, buffers.seq_lens, addresses, page_table, page_table.stride(0), seq_lens.shape[0],
        padded, most_pages, steps, triton.next_power_of_2(steps), filler, page, summed, BLOCK, PARTS,
    )  # fmt: skip


def fill_extend(
    buffers: Any, ids: Any, correct: Any, accepted: Any, select: Any, rows: Any, seq_lens: Any, table: Any, *,
    padded: int, width: int, filler: int,
) -> None:  # fmt: skip
    """Do the same for a draft extend over *ids* [b * width] int64, whose graph makes fa3's metadata itself.

    *correct* and *accepted* are int32 [b], each request's accepted drafts and new tokens; *select* is int64 [b], the
    row whose output is used.
    """
    _fill_extend(
        (width, filler), (padded, 1), ids, correct, accepted, select, rows, seq_lens, table, table.stride(0),
        table.shape[1], buffers.input_ids, buffers.num_correct_drafts, buffers.num_accept_tokens, buffers.select_index,
        buffers.extend_seq_lens, buffers.positions, buffers.out_cache_loc, buffers.req_pool_indices, buffers.seq_lens,
        seq_lens.shape[0], width, triton.next_power_of_2(width), filler,
    )  # fmt: skip


def linked(last: Any, drafts: Any, rows: Any, seq_lens: Any, table: Any) -> tuple[Any, Any, Any, Any]:
    """Return the chains of b > 0 requests as SGLang's build_chain_tree does.

    *last* is each request's last token, [b]; *drafts* are [b, steps] int64. Returns new int64 tensors, request by
    request: tokens (the last one, then the drafts), positions, links [3, b, steps + 1], and slots.
    """
    requests, width = drafts.shape[0], drafts.shape[1] + 1
    tokens, positions, slots = (seq_lens.new_empty(requests * width) for _ in range(3))
    links = seq_lens.new_empty((3, requests, width))
    _link(
        (width, last.dtype, drafts.dtype), (requests, 1), last, drafts, drafts.stride(0), rows, seq_lens, table,
        table.stride(0), table.shape[1], tokens, positions, links, slots, requests, width,
        triton.next_power_of_2(width),
    )  # fmt: skip
    return tokens, positions, links, slots
