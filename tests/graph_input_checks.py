"""Checks the kernels that fill a graph's inputs against torch and the kernel of a single pass."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from sglang_adaptive.sglang_plugin.stages.fast_path import graph_inputs, length_kernel
from tests import checks

DEVICE = checks.device()

POISON = -7
ROOM, ROWS, TABLE = 64, 9, 64
"""Size of each buffer, rows of the pool, and pages of the page table."""

SHAPES = ((1, 1, 1, 1), (3, 4, 4, 1), (5, 8, 8, 1), (2, 2, 3, 16))
"""Requests, requests of the graph, tokens per request, and tokens per page."""

NUMBERS = ("input_ids", "positions", "out_cache_loc", "req_pool_indices", "seq_lens", "select_index", "topk_index")
SMALL = ("num_correct_drafts", "num_accept_tokens", "extend_seq_lens")


def a_verify_pass_reads_its_tokens_at_their_slots() -> None:
    """Lengths and page tables match those of their own kernel; rows without a request read what SGLang specifies."""
    for of in _cases():
        buffers, metadata = _buffers(), _metadata(of.padded)
        graph_inputs.fill_verify(
            buffers, metadata, of.tokens, of.rows, of.lengths, of.table, padded=of.padded, width=of.width,
            more=of.width, filler=1, page=of.page, most_pages=TABLE,
        )  # fmt: skip
        _equal(metadata, _one_pass(of, of.width))
        assert torch.equal(buffers.input_ids[: of.tokens.numel()], of.tokens)
        _placed(of, buffers, of.width, filler=1)
        _only(buffers.positions, of.padded * of.width)


def a_draft_reads_what_each_of_its_passes_would() -> None:
    """The first draft and its probability, all slots, and the lengths of each pass."""
    for of in _cases():
        steps = of.width - 1
        if steps < 2:
            continue
        buffers, passes = _buffers(), [_metadata(of.padded) for _ in range(steps - 1)]
        lengths, ends = [one.cache_seqlens_int32 for one in passes], [one.cu_seqlens_k for one in passes]
        addresses = torch.tensor([part.data_ptr() for part in (*lengths, *ends)], device=DEVICE)
        chosen, chances = of.tokens[: of.requests, None].clone(), torch.rand(of.requests, 1, device=DEVICE)
        graph_inputs.fill_draft(
            buffers, addresses, passes[0].page_table, chosen, chances, of.rows, of.lengths, of.table,
            padded=of.padded, steps=steps, filler=1, page=of.page, most_pages=TABLE,
        )  # fmt: skip
        for place, one in enumerate(passes):
            wanted = _one_pass(of, place + 1)
            _equal(one, wanted, ("cache_seqlens_int32", "cu_seqlens_k"))
        assert torch.equal(passes[0].page_table, wanted.page_table)
        assert torch.equal(buffers.topk_index[: of.padded], _padded(chosen[:, 0], of.padded))
        assert torch.equal(buffers.topk_p[: of.requests], chances)
        _placed(of, buffers, steps, filler=1, positions=1)


def a_draft_extend_reads_what_was_accepted() -> None:
    for of in _cases():
        buffers = _buffers()
        correct = torch.randint(0, of.width, (of.requests,), dtype=torch.int32).to(DEVICE)
        select = torch.arange(of.requests, device=DEVICE) * of.width + correct
        graph_inputs.fill_extend(
            buffers, of.tokens, correct, correct + 1, select, of.rows, of.lengths, of.table, padded=of.padded,
            width=of.width, filler=9,
        )  # fmt: skip
        assert torch.equal(buffers.input_ids[: of.tokens.numel()], of.tokens)
        assert torch.equal(buffers.num_correct_drafts[: of.padded], _padded(correct, of.padded, of.width))
        assert torch.equal(buffers.num_accept_tokens[: of.padded], _padded(correct + 1, of.padded, of.width))
        assert torch.equal(buffers.select_index[: of.requests], select)
        assert bool((buffers.extend_seq_lens[: of.padded] == of.width).all())
        _placed(of, buffers, of.width, filler=9, longer=of.width)


def chains_are_linked_as_by_sglang() -> None:
    from sglang.kernels.ops.speculative.eagle import build_chain_tree

    for of in _cases():
        if of.width == 1:
            continue
        last, drafts = of.tokens.view(of.requests, of.width)[:, 0].clone(), of.tokens.view(of.requests, of.width)[:, 1:]
        tokens, positions, links, slots = graph_inputs.linked(last, drafts, of.rows, of.lengths, of.table)
        _, wanted, *links_wanted, tokens_wanted, slots_wanted, _ = build_chain_tree(
            last, drafts, of.lengths, None, of.rows, of.table
        )
        for mine, theirs in zip(links, links_wanted, strict=True):
            assert torch.equal(mine, theirs)
        assert (
            torch.equal(tokens, tokens_wanted) and torch.equal(positions, wanted) and torch.equal(slots, slots_wanted)
        )


def _cases() -> Iterator[Any]:
    for requests, padded, width, page in SHAPES:
        draw = torch.Generator().manual_seed(requests * width)
        table = torch.randint(0, 10**6, (ROWS, TABLE * page), dtype=torch.int32, generator=draw)
        table[0] = 0
        yield SimpleNamespace(
            requests=requests, padded=padded, width=width, page=page, table=table.to(DEVICE),
            rows=(torch.randperm(ROWS - 1, generator=draw)[:requests] + 1).to(DEVICE),
            lengths=torch.randint(1, 40, (requests,), generator=draw).to(DEVICE),
            tokens=torch.randint(0, 100, (requests * width,), generator=draw).to(DEVICE),
        )  # fmt: skip


def _buffers() -> Any:
    wide = {name: torch.full((ROOM,), POISON, dtype=torch.int64, device=DEVICE) for name in NUMBERS}
    small = {name: torch.full((ROOM,), POISON, dtype=torch.int32, device=DEVICE) for name in SMALL}
    return SimpleNamespace(**wide, **small, topk_p=torch.full((ROOM, 1), float(POISON), device=DEVICE))


def _metadata(padded: int) -> Any:
    def poison(*shape: int) -> Tensor:
        return torch.full(shape, POISON, dtype=torch.int32, device=DEVICE)

    return SimpleNamespace(
        cache_seqlens_int32=poison(padded), cu_seqlens_k=poison(padded + 1), page_table=poison(padded, TABLE)
    )


def _one_pass(of: Any, more: int) -> Any:
    """Return what the kernel of a single pass writes for requests that read *more* tokens than their lengths."""
    found = _metadata(of.padded)
    length_kernel.fill(
        found.cache_seqlens_int32, found.cu_seqlens_k, found.page_table, of.table, _padded(of.rows, of.padded),
        _padded(of.lengths, of.padded, 1), more, of.page, TABLE,
    )  # fmt: skip
    return found


def _placed(of: Any, buffers: Any, width: int, filler: int, longer: int = 0, positions: int | None = None) -> None:
    """Assert rows, lengths, and the positions and slots of *width* tokens after each request's length."""
    each = torch.arange(width, device=DEVICE)
    slots = torch.stack([of.table[row, at : at + width].long() for row, at in zip(of.rows, of.lengths, strict=True)])
    told = (of.lengths[:, None] + each)[:, : width if positions is None else positions]
    assert torch.equal(buffers.req_pool_indices[: of.padded], _padded(of.rows, of.padded))
    assert torch.equal(buffers.seq_lens[: of.padded], _padded(of.lengths + longer, of.padded, filler))
    assert torch.equal(
        buffers.positions[: of.padded * told.shape[1]], _padded(told.flatten(), of.padded * told.shape[1])
    )
    assert torch.equal(buffers.out_cache_loc[: of.padded * width], _padded(slots.flatten(), of.padded * width))


def _padded(values: Tensor, size: int, filler: int = 0) -> Tensor:
    return torch.cat([values, values.new_full((size - values.shape[0],), filler)])


def _only(buffer: Tensor, size: int) -> None:
    assert bool((buffer[size:] == POISON).all()), buffer


def _equal(mine: Any, theirs: Any, names: Any = ("cache_seqlens_int32", "cu_seqlens_k", "page_table")) -> None:
    for name in names:
        assert torch.equal(getattr(mine, name), getattr(theirs, name)), (
            name,
            getattr(mine, name),
            getattr(theirs, name),
        )
