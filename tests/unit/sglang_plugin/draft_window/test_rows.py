"""The draft's rows of the slot table, compared with a request's real slots."""

from __future__ import annotations

import pytest
import torch

from sglang_adaptive.policy.config import SINKS
from sglang_adaptive.sglang_plugin.draft_window.rows import Shape, shortened

ROWS, COLUMNS, AHEAD, FIRST = 6, 256, 8, 5008
"""FIRST: first slot of the sinks."""


def table(page: int) -> torch.Tensor:
    """Return a table whose requests have pages anywhere in the pool; its lower half is empty."""
    drawn = torch.Generator().manual_seed(page)
    pages = torch.stack([torch.randperm(4 * COLUMNS // page, generator=drawn) for _ in range(ROWS)])
    slots = pages[:, : COLUMNS // page, None] * page + torch.arange(page)
    return torch.cat([slots.flatten(1), torch.zeros(ROWS, COLUMNS)]).to(torch.int32)


@pytest.mark.parametrize("page", [1, 4, 16])
@pytest.mark.parametrize("extends", [False, True])
def test_rows_hold_the_sinks_and_the_latest_tokens(page: int, extends: bool) -> None:
    shape, slots = Shape.of(130, 40, page, AHEAD), table(page)
    before, rows = slots.clone(), torch.tensor([3, 1, 5, 2])
    known = torch.tensor([130, 131, 194, 60])
    lengths = known + AHEAD if extends else known
    seen = shortened(slots, rows, lengths, known.to(torch.int32) if extends else None, shape, FIRST)
    assert torch.equal(slots[:ROWS], before[:ROWS])
    for at, (row, length) in enumerate(zip(rows.tolist(), known.tolist(), strict=True)):
        own = before[row, : length + AHEAD]
        end = int(seen.lengths[at]) + (0 if extends else AHEAD)
        found = slots[seen.rows[at], :end]
        if length <= shape.whole:
            assert int(seen.rows[at]) == row and torch.equal(found, own)
            continue
        recent = end - shape.sinks
        assert shape.window + AHEAD <= recent < shape.window + page + AHEAD
        assert found[: shape.sinks].tolist() == [FIRST + row * shape.sinks + sink for sink in range(shape.sinks)]
        assert torch.equal(found[shape.sinks :], own[-recent:])
        assert end <= shape.width
    assert torch.equal(seen.left, shape.left_out(known))
    if seen.prefixes is not None:
        assert torch.equal(seen.lengths - seen.prefixes, torch.full((4,), AHEAD))


@pytest.mark.parametrize("page", [4, 16])
def test_pages_stay_pages(page: int) -> None:
    """Backends divide the slot of every first token of a page by the page size."""
    shape, slots = Shape.of(130, 40, page, AHEAD), table(page)
    seen = shortened(slots, torch.arange(4), torch.tensor([131, 163, 180, 229]), None, shape, FIRST)
    for row, length in zip(seen.rows, seen.lengths, strict=True):
        own = slots[row, : int(length)]
        assert torch.equal(own, own[::page].repeat_interleave(page)[: len(own)] + torch.arange(len(own)) % page)


def test_a_row_near_the_end_of_the_context_does_not_read_beyond_it() -> None:
    shape, slots = Shape.of(130, 40, 1, AHEAD), table(1)
    seen = shortened(slots, torch.tensor([0]), torch.tensor([COLUMNS - 2]), None, shape, FIRST)
    assert torch.equal(slots[seen.rows[0], SINKS : SINKS + 42], slots[0, COLUMNS - 42 :])


def test_hosts_and_devices_leave_out_alike() -> None:
    shape = Shape.of(130, 40, 16, AHEAD)
    lengths = torch.arange(1, 250)
    assert shape.left_out(lengths).tolist() == [shape.left_out(int(length)) for length in lengths]
