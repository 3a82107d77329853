"""Lays out the tiles of a FlashInfer pass on the device, with one kernel.

FlashInfer's attention kernels (fa2) need to know in advance which part of which request each block reads. Its planner,
`PrefillPlan` and `DecodePlan` of FlashInfer 0.7.2's `scheduler.cuh`, computes that on the host from the request
lengths and copies it to the device. Where a CUDA graph is replayed, the number of blocks is fixed and only a few arrays
depend on lengths. This kernel writes those arrays from lengths on the device by the planner's rule: the smallest number
of keys per block, at least 128, for which there are enough blocks. It also writes what SGLang passes to the planner:
the slots of all keys, and the mask of a chain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from sglang_adaptive.sglang_plugin.stages.fast_path.launches import launched
from sglang_adaptive.sglang_plugin.stages.fast_path.length_kernel import BLOCK, room

LEAST_KEYS = 128
"""Minimum keys per block in FlashInfer's planner."""
PARTS = 8
"""Blocks of this kernel per request."""
MASK_BLOCK = 256
"""Bytes of the mask written at a time."""
TILE = 3
"""Index of the rows per tile in a prefill's plan."""


@launched
def _lay_out(  # type: ignore[no-untyped-def, unused-ignore]
    rows, seq_lens, table, table_stride, ends, keys, query_ends, ints, live, mask, mask_ends,
    at_request, at_query, at_part, at_rows, at_outputs, at_keys, at_live, requests, blocks, enough,
    MORE: tl.constexpr, WIDTH: tl.constexpr, TILES: tl.constexpr, SPLIT: tl.constexpr, QUERIES: tl.constexpr,
    REQUESTS: tl.constexpr, LEAST: tl.constexpr, BLOCK: tl.constexpr, MASK_BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    request, part = tl.program_id(0), tl.program_id(1)
    each = tl.arange(0, REQUESTS)
    inside, before = each < requests, each < request
    lengths = tl.load(seq_lens + each, mask=inside, other=0).to(tl.int32) + MORE
    lengths = tl.where(inside, lengths, 0)
    length = tl.load(seq_lens + request).to(tl.int32) + MORE
    begin = tl.sum(tl.where(before, lengths, 0))
    last = request == requests - 1
    slots = table + tl.load(rows + request).to(tl.int64) * table_stride
    for first in range(part * BLOCK, length, PARTS * BLOCK):
        key = first + tl.arange(0, BLOCK)
        slot = tl.load(slots + key, mask=key < length, other=0)
        tl.store(keys + begin + key, slot, mask=key < length)
    if mask is not None:
        filled = tl.where(inside, tl.cdiv(lengths * WIDTH, 8), 0)
        mask_begin, size = tl.sum(tl.where(before, filled, 0)), tl.cdiv(length * WIDTH, 8)
        for first in range(part * MASK_BLOCK, size, PARTS * MASK_BLOCK):
            byte = first + tl.arange(0, MASK_BLOCK)
            bit = tl.arange(0, 8)
            place = byte[:, None] * 8 + bit[None, :]
            query = place // length
            sees = (query < WIDTH) & (place - query * length <= length - WIDTH + query)
            packed = tl.sum(sees.to(tl.int32) << bit[None, :], axis=1)
            tl.store(mask + mask_begin + byte, packed.to(tl.uint8), mask=byte < size)
        if part == 0:
            tl.store(mask_ends + request, mask_begin)
            if last:
                tl.store(mask_ends + requests, mask_begin + size)
    if part == 0:
        tl.store(ends + request, begin)
        if last:
            tl.store(ends + requests, begin + length)
        if QUERIES:
            tl.store(query_ends + request, request * WIDTH)
            if last:
                tl.store(query_ends + requests, requests * WIDTH)
        if SPLIT:
            low, high = LEAST + 0 * length, tl.max(lengths)
            while low < high:
                middle = (low + high) // 2
                too_many = TILES * tl.sum(tl.where(inside, tl.cdiv(lengths, middle), 0)) > enough
                low, high = tl.where(too_many, middle + 1, low), tl.where(too_many, high, middle)
            parts = tl.where(inside, tl.cdiv(lengths, low), 0)
            parts_before, parts_here = tl.sum(tl.where(before, parts, 0)), tl.cdiv(length, low)
            for first in range(0, TILES * parts_here, BLOCK):
                tile = first + tl.arange(0, BLOCK)
                mine, at = tile < TILES * parts_here, TILES * parts_before + tile
                tl.store(ints + at_request + at, request, mask=mine)
                tl.store(ints + at_part + at, tile % parts_here, mask=mine)
                if QUERIES:
                    tl.store(ints + at_query + at, tile // parts_here, mask=mine)
            tl.store(ints + at_outputs + request, WIDTH * parts_before)
            if QUERIES:
                for row in tl.static_range(WIDTH):
                    tl.store(ints + at_rows + request * WIDTH + row, WIDTH * parts_before + row * parts_here)
            if last:
                outputs = WIDTH * (parts_before + parts_here)
                tl.store(ints + at_outputs + requests, outputs)
                tl.store(ints + at_keys, low)
                if QUERIES:
                    tl.store(ints + at_rows + requests * WIDTH, outputs)
                for first in range(0, blocks, BLOCK):
                    block = first + tl.arange(0, BLOCK)
                    used = block < TILES * (parts_before + parts_here)
                    tl.store(live + at_live + block, used.to(tl.uint8), mask=block < blocks)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where one FlashInfer wrapper of a CUDA graph reads its tiles, and how many there are."""

    width: int
    """Queries per request."""
    tiles: int
    """Query tiles per request."""
    split: bool
    """Whether several blocks read a request's keys."""
    has_queries: bool
    """Whether queries are laid out as well: in the prefill planner, not in the decode planner."""
    blocks: int
    """Blocks of the graph."""
    enough: int
    """Blocks that keys are split for."""
    ints: Any
    """The planner's workspace as int32; `places` are offsets into it."""
    live: Any
    """The same as uint8."""
    places: tuple[int, int, int, int, int, int, int]
    """Offsets of each block's request, query tile and key part; of each query's and each request's first output; of the
    keys per part; and (in bytes) of whether a block is used."""

    @classmethod
    def of(cls, wrapper: Any, requests: int, query_heads: int, key_heads: int, processors: int) -> Layout:
        """Return the layout of *wrapper*, whose graph takes *requests* requests, on a GPU with *processors* SMs."""
        info = [int(value) for value in wrapper._plan_info]
        workspace, is_graph, split = wrapper._int_workspace_buffer, info[-2], bool(info[-1])
        assert is_graph and len(info) in (10, 15), info
        if len(info) == 10:
            blocks, _, _, request, part, outputs, live, keys = info[:8]
            width, tiles, enough, query, first_rows = 1, 1, blocks, request, outputs
        else:
            blocks, rows, _, tile, request, query, part, first_rows, outputs, keys, _, _, live = info[:13]
            width, enough = rows // requests, 2 * processors // key_heads
            tiles = -(-width * (query_heads // key_heads) // tile)
            assert split and rows == width * requests and requests * tiles <= blocks, info
        assert not split or not any(start % 4 for start in (request, query, part, first_rows, outputs, keys)), info
        places = (request // 4, query // 4, part // 4, first_rows // 4, outputs // 4, keys // 4, live)
        ints = workspace.view(torch.int32)
        return cls(width, tiles, split, len(info) == 15, blocks, enough, ints, workspace, places)


def with_small_tiles(info: Iterable[int], rows: int) -> list[int]:
    """Return *info*, the plan of a prefill's graph, with tiles for *rows* (queries times heads per KV head) a request.

    The planner assumes one request with all rows of the graph, so it picks tiles of 128 rows from 64 rows on, where
    each request has 16: a block then multiplies eight times too much. A request of at most 64 rows has one tile of
    either size, so nothing else in this plan, or in a later plan for the same graph, depends on it.
    """
    numbers = [int(number) for number in info]
    fitting = [tile for tile in (16, 64) if rows <= tile]
    numbers[TILE] = min([numbers[TILE], *fitting[:1]])
    return numbers


def lay_out(
    layout: Layout, rows: Any, seq_lens: Any, table: Any, more: int, ends: Any, keys: Any, query_ends: Any = None,
    mask: Any = None, mask_ends: Any = None,
) -> None:  # fmt: skip
    """Write the tiles of a pass of b requests into *layout*, on the device; nothing waits for it.

    *rows* and *seq_lens*, [b] integers, are rows of *table* and lengths; the pass reads *more* tokens than each length.
    Also writes

    - *ends*, [b + 1] int32: prefix sums of the tokens read, from 0; *keys*, int32: the slots of all of them;
    - *query_ends*, [b + 1] int32: prefix sums of queries, where the layout has them;
    - with *mask*, uint8: which keys each query of a chain sees, query by query, the lowest bit first, each request
      from a new byte on; and *mask_ends*, [b + 1] int32: prefix sums of its bytes.
    """
    requests, summed = seq_lens.shape[0], room(seq_lens.shape[0])
    constants = (more, layout.width, layout.tiles, layout.split, layout.has_queries, summed)
    kind = (*constants, rows.dtype, seq_lens.dtype, query_ends is None, mask is None)
    _lay_out(
        kind, (requests, PARTS), rows, seq_lens, table, table.stride(0), ends, keys, query_ends, layout.ints,
        layout.live, mask, mask_ends, *layout.places, requests, layout.blocks, layout.enough, *constants, LEAST_KEYS,
        BLOCK, MASK_BLOCK, PARTS,
    )  # fmt: skip
