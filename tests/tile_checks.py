"""Checks the kernel that lays out FlashInfer's tiles against its planner's rules, written out one by one."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from sglang_adaptive.sglang_plugin.stages.fast_path.tile_kernel import LEAST_KEYS, Layout, lay_out
from tests import checks

DEVICE = checks.device()

POISON = 113
ROWS, COLUMNS = 20, 1700
PROCESSORS = 8


@dataclass
class Pass:
    """A pass of a graph: what it reads, and where FlashInfer would lay it out."""

    wrapper: Any
    layout: Layout
    lengths: Tensor
    more: int
    rows: Tensor
    table: Tensor
    ends: Tensor
    keys: Tensor
    query_ends: Tensor
    mask: Tensor
    mask_ends: Tensor

    @property
    def read(self) -> list[int]:
        """Return how many keys each request reads."""
        return [int(length) + self.more for length in self.lengths]

    def laid_out(self, masked: bool = False) -> Pass:
        """Return the pass, laid out by the kernel."""
        lay_out(
            self.layout, self.rows, self.lengths, self.table, self.more, self.ends, self.keys,
            self.query_ends if self.layout.has_queries else None, *((self.mask, self.mask_ends) if masked else ()),
        )  # fmt: skip
        return self

    def ints(self, place: int, size: int) -> list[int]:
        """Return *size* numbers of the layout's array at *place*."""
        start = self.layout.places[place]
        return list(map(int, self.layout.ints[start : start + size]))

    def lives(self) -> list[int]:
        """Return which blocks are in use."""
        start = self.layout.places[6]
        return list(map(int, self.layout.live[start : start + self.layout.blocks]))


def keys_lie_where_the_requests_do() -> None:
    for one in _laid_out():
        wanted = [one.table[row, :size] for row, size in zip(one.rows, one.read, strict=True)]
        total = sum(one.read)
        assert torch.equal(one.keys[:total], torch.cat(wanted)) and bool((one.keys[total:] == POISON).all())
        assert one.ends.tolist() == sums(one.read)


def each_block_has_its_part() -> None:
    for one in _laid_out():
        parts = _parts(one)
        wanted = [
            (request, tile, part)
            for request, count in enumerate(parts)
            for tile in range(one.layout.tiles)
            for part in range(count)
        ]
        requests, tiles, split = ([block[place] for block in wanted] for place in range(3))
        assert one.ints(0, len(wanted)) == requests and one.ints(2, len(wanted)) == split
        if one.layout.has_queries:
            assert one.ints(1, len(wanted)) == tiles
        assert one.lives() == [1] * len(wanted) + [0] * (one.layout.blocks - len(wanted))
        assert one.ints(5, 1) == [_size(one)]


def parts_of_a_query_are_added_up_side_by_side() -> None:
    for one in _laid_out():
        parts, width = _parts(one), one.layout.width
        requests = len(parts)
        assert one.ints(4, requests + 1) == sums([width * count for count in parts])
        if one.layout.has_queries:
            assert one.ints(3, requests * width + 1) == sums([count for count in parts for _ in range(width)])
            assert one.query_ends.tolist() == sums([width] * requests)


def a_query_sees_itself_and_what_is_before_it() -> None:
    for one in _passes():
        if not one.layout.has_queries or one.more < one.layout.width:
            continue
        one.laid_out(masked=True)
        packed = [_packed(size, one.layout.width) for size in one.read]
        assert one.mask_ends.tolist() == sums([len(part) for part in packed])
        total = sum(map(len, packed))
        assert one.mask[:total].tolist() == [byte for part in packed for byte in part]
        assert bool((one.mask[total:] == POISON).all())


def a_pass_that_is_not_split_has_its_keys_alone() -> None:
    for one in _passes():
        if one.layout.has_queries:
            continue
        alone = replace(one, layout=replace(one.layout, split=False))
        before = one.layout.live.clone()
        alone.laid_out()
        assert one.ends.tolist() == sums(one.read) and torch.equal(one.layout.live, before)


def a_plan_of_another_kind_is_refused() -> None:
    for info in ([4] * 13 + [0, 1], [4] * 12 + [1, 1]):
        wrapper = SimpleNamespace(_plan_info=info, _int_workspace_buffer=None)
        try:
            Layout.of(wrapper, 1, 8, 2, PROCESSORS)
        except AssertionError:
            continue
        raise AssertionError(info)


# -- passes ----------------------------------------------------------------------------------------------------------


def _passes() -> Iterator[Pass]:
    """Yield passes of a draft, a verify and a draft extend, short and long, for both planners."""
    generator = torch.Generator().manual_seed(7)
    for requests, width, longest in ((1, 1, 40), (1, 4, 1600), (3, 4, 700), (9, 1, 1600), (5, 8, 130), (16, 2, 1500)):
        lengths = torch.randint(1, longest, (requests,), generator=generator)
        for queries, heads in ((True, 8), (False, 4)):
            if queries or width == 1:
                yield _pass(lengths, width if queries else 1, queries, heads)


@functools.cache
def _laid_out() -> list[Pass]:
    """Return the same passes, laid out by the kernel without a mask; read-only."""
    return [one.laid_out() for one in _passes()]


def _pass(lengths: Tensor, width: int, queries: bool, heads: int) -> Pass:
    requests, device = len(lengths), DEVICE
    table = torch.randperm(ROWS * COLUMNS, generator=torch.Generator().manual_seed(3)).view(ROWS, COLUMNS).int()
    wrapper = wrapper_of(requests, width, queries, heads)
    return Pass(
        wrapper, Layout.of(wrapper, requests, heads, 2, PROCESSORS), lengths.to(device), width,
        torch.randperm(ROWS)[:requests].to(device), table.to(device), poison(requests + 1), poison(60_000),
        poison(requests + 1), poison(60_000, torch.uint8), poison(requests + 1),
    )  # fmt: skip


@dataclass(eq=False)
class Wrapper:
    """The parts of FlashInfer's wrappers that are read."""

    _plan_info: list[int]
    _int_workspace_buffer: Any


def wrapper_of(requests: int, width: int, queries: bool, heads: int) -> Any:
    """Return what FlashInfer's planners leave for a graph: their arrays in order, aligned to multiples of 16."""
    tile = 16
    rows, enough = requests * width, 2 * PROCESSORS // 2
    blocks = max(enough, -(-rows * (heads // 2) // tile) + requests - 1) if queries else max(12, requests)
    places, end = [], 0
    sizes = [blocks, blocks, blocks, requests + 1, 1, 1, rows + 1, blocks] if queries else [blocks] * 4
    for size in sizes:
        places.append(end)
        end += -(-4 * size // 16) * 16
    if queries:
        request, query, part, outputs, keys, total, first_rows, live = places
        info = [blocks, rows, total, tile, request, query, part, first_rows, outputs, keys, 0, 0, live, 1, 1]
    else:
        request, part, outputs, live = places
        info = [blocks, 0, 0, request, part, outputs, live, end, 1, 1]
    return Wrapper(info, poison(end + 16, torch.uint8))


def poison(size: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.full((size,), POISON, dtype=dtype, device=DEVICE)


# -- the planner's rules ---------------------------------------------------------------------------------------------


def _size(one: Pass) -> int:
    """Return the number of keys per part."""
    longest = max(one.read)
    for size in range(LEAST_KEYS, longest):
        if one.layout.tiles * sum(-(-read // size) for read in one.read) <= one.layout.enough:
            return size
    return max(LEAST_KEYS, longest)


def _parts(one: Pass) -> list[int]:
    return [-(-read // _size(one)) for read in one.read]


def _packed(size: int, width: int) -> list[int]:
    bits = [key <= size - width + query for query in range(width) for key in range(size)]
    return [sum(bit << place for place, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8)]


def sums(sizes: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(sizes)]
