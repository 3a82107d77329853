"""Writes the draft's rows of the slot table and their sinks on CUDA: two launches per pass with a one-layer draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from sglang_adaptive.sglang_plugin.draft_window.rows import Shape
    from sglang_adaptive.sglang_plugin.draft_window.sinks import Sinks

BLOCK = 512
"""Places that a block copies."""


@triton.jit(do_not_specialize=["table_stride", "second", "columns", "first_slot"])  # type: ignore[untyped-decorator, unused-ignore]
def _shorten(  # type: ignore[no-untyped-def, unused-ignore]
    table, table_stride, second, columns, first_slot, rows, lengths, prefixes, seen_rows, seen_lengths, seen_prefixes,
    left_out,
    WHOLE: tl.constexpr, WINDOW: tl.constexpr, SINKS: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    request, part = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + request)
    known = length if prefixes is None else tl.load(prefixes + request).to(length.dtype)
    is_long = known > WHOLE
    left = tl.where(is_long, (known - WINDOW) // PAGE * PAGE - SINKS, 0)
    row = tl.load(rows + request)
    if part == 0:
        tl.store(seen_rows + request, tl.where(is_long, row + second, row))
        tl.store(seen_lengths + request, length - left)
        tl.store(left_out + request, left)
        if prefixes is not None:
            tl.store(seen_prefixes + request, known - left)
    if is_long:
        place = part * BLOCK + tl.arange(0, BLOCK)
        inside = place < WIDTH
        recent = tl.load(
            table + row.to(tl.int64) * table_stride + tl.minimum(place + left, columns - 1),
            mask=inside & (place >= SINKS), other=0,
        )  # fmt: skip
        slots = tl.where(place < SINKS, first_slot + row * SINKS + place, recent)
        tl.store(table + (row + second).to(tl.int64) * table_stride + place, slots, mask=inside)


@triton.jit(do_not_specialize=["table_stride", "first_slot"])  # type: ignore[untyped-decorator, unused-ignore]
def _place(  # type: ignore[no-untyped-def, unused-ignore]
    keys, values, table, table_stride, first_slot, rows, left_out, rotations, rotation_stride,
    SINKS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, TURNING: tl.constexpr, VALUES: tl.constexpr,
    HALVES: tl.constexpr, MOST_HEADS: tl.constexpr, MOST_WIDTH: tl.constexpr, MOST_VALUES: tl.constexpr,
):  # fmt: skip
    request, sink = tl.program_id(0), tl.program_id(1)
    left = tl.load(left_out + request)
    if left > 0:
        row = tl.load(rows + request).to(tl.int64)
        source = tl.load(table + row * table_stride + sink).to(tl.int64)
        target = first_slot + row * SINKS + sink
        head, at = tl.arange(0, MOST_HEADS)[:, None], tl.arange(0, MOST_WIDTH)[None, :]
        inside = (head < HEADS) & (at < WIDTH)
        turns = at < TURNING
        half: tl.constexpr = TURNING // 2
        # The place of the pair's other element, the index of their angle, and which element this one is.
        if HALVES:
            first, pair = at < half, tl.where(at < half, at, at - half)
            other = tl.where(first, at + half, at - half)
        else:
            first, pair = at % 2 == 0, at // 2
            other = tl.where(first, at + 1, at - 1)
        own = tl.load(keys + (source * HEADS + head) * WIDTH + at, mask=inside, other=0).to(tl.float32)
        partner = tl.load(keys + (source * HEADS + head) * WIDTH + other, mask=inside & turns, other=0).to(tl.float32)
        cos = tl.load(rotations + left * rotation_stride + pair, mask=turns, other=1).to(tl.float32)
        sin = tl.load(rotations + left * rotation_stride + half + pair, mask=turns, other=0).to(tl.float32)
        scale = 1.0 / tl.sqrt(cos * cos + sin * sin)
        turned = tl.where(turns, (own * cos + tl.where(first, -partner, partner) * sin) * scale, own)
        tl.store(keys + (target * HEADS + head) * WIDTH + at, turned.to(keys.dtype.element_ty), mask=inside)
        at = tl.arange(0, MOST_VALUES)[None, :]
        inside = (head < HEADS) & (at < VALUES)
        value = tl.load(values + (source * HEADS + head) * VALUES + at, mask=inside)
        tl.store(values + (target * HEADS + head) * VALUES + at, value, mask=inside)


def shortened(
    table: Any, rows: Any, lengths: Any, prefixes: Any, shape: Shape, first_slot: int
) -> tuple[Any, Any, Any, Any]:
    """Do what `rows.shortened` does, for contiguous *rows*, *lengths* and *prefixes*; nothing waits for the device."""
    seen = torch.empty_like(rows), torch.empty_like(lengths), None if prefixes is None else torch.empty_like(prefixes)
    left = torch.empty_like(lengths)
    _shorten[(lengths.shape[0], triton.cdiv(shape.width, BLOCK))](
        table, table.stride(0), table.shape[0] // 2, table.shape[1], first_slot, rows, lengths, prefixes, *seen, left,
        WHOLE=shape.whole, WINDOW=shape.window, SINKS=shape.sinks, PAGE=shape.page, WIDTH=shape.width, BLOCK=BLOCK,
    )  # fmt: skip
    return *seen, left


def place(sinks: Sinks, table: Any, rows: Any, left: Any, shape: Shape) -> None:
    """Do what `Sinks.place` does; nothing waits for the device."""
    for keys, values in zip(sinks.keys, sinks.values, strict=True):
        _, heads, width = keys.shape
        _place[(rows.shape[0], shape.sinks)](
            keys, values, table, table.stride(0), sinks.first_slot, rows, left, sinks.rotations,
            sinks.rotations.stride(0),
            SINKS=shape.sinks, HEADS=heads, WIDTH=width, TURNING=sinks.rotations.shape[1], VALUES=values.shape[2],
            HALVES=sinks.halves, MOST_HEADS=triton.next_power_of_2(heads), MOST_WIDTH=triton.next_power_of_2(width),
            MOST_VALUES=triton.next_power_of_2(values.shape[2]),
        )  # fmt: skip
