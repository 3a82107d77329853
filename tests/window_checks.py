"""Checks the CUDA kernel that writes the draft's rows of the slot table, and SGLang's slot lists built from them.

``TRITON_INTERPRET=1 python -m tests.window_checks`` runs the kernels without a device and prints one JSON object: null
for each check that passes, else the reason. tests/gpu/test_draft_window.py runs the same on a device.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from sglang_adaptive.policy.config import SINKS
from sglang_adaptive.sglang_plugin.draft_window import kernel, rows
from sglang_adaptive.sglang_plugin.draft_window.rows import Shape
from sglang_adaptive.sglang_plugin.draft_window.sinks import Sinks
from sglang_adaptive.sglang_plugin.draft_window.window import DraftWindow
from tests import checks

DEVICE = checks.device()

ROWS, COLUMNS, AHEAD = 6, 2304, 8
FIRST = 7_000_000
LENGTHS = [40, 1000, 1001, 2200, 1777]


def the_kernel_writes_what_torch_writes() -> None:
    """Covers pages of 1 and more, decode and extend passes, and windows smaller and larger than a block."""
    for page, window, extends in ((1, 40, False), (1, 600, True), (16, 600, False), (64, 96, True)):
        shape = Shape.of(1000, window, page, AHEAD)
        known = torch.tensor(LENGTHS)
        lengths = known + AHEAD if extends else known
        prefixes = known.to(torch.int32) if extends else None
        tables = [_table(), _table()]
        asked = torch.tensor([2, 0, 5, 1, 3])
        wanted = rows.shortened(tables[0], asked, lengths, prefixes, shape, FIRST)
        given = [None if one is None else one.to(DEVICE) for one in (asked, lengths, prefixes)]
        on_device = tables[1].to(DEVICE)
        found = rows.Seen(*kernel.shortened(on_device, *given, shape, FIRST))
        for name in ("rows", "lengths", "prefixes", "left"):
            one, other = getattr(wanted, name), getattr(found, name)
            assert (one is None) == (other is None), name
            assert one is None or torch.equal(one, other.cpu()), (page, window, name, one, other)
        assert torch.equal(tables[0], on_device.cpu()), (page, window)


def sinks_are_turned_as_torch_turns_them() -> None:
    """Covers both layouts of pairs, widths that are not powers of two, keys that only rotate in part, and bfloat16."""
    for halves, width, turning, kind in ((True, 64, 64, torch.float32), (False, 96, 64, torch.bfloat16)):
        shape, table = Shape.of(1000, 40, 1, AHEAD), _table() % 500
        left = shape.left_out(torch.tensor(LENGTHS))
        drawn = torch.Generator().manual_seed(5)
        buffers = [torch.randn(500 + ROWS * SINKS, 3, wide, generator=drawn).to(kind) for wide in (width, 24)]
        angles = torch.arange(COLUMNS)[:, None] * 500.0 ** -(torch.arange(turning // 2) / (turning // 2))
        rotations = 1.2 * torch.cat([angles.cos(), angles.sin()], dim=-1)  # scaled like YaRN's
        found = []
        for device, place in (("cpu", Sinks.place), (DEVICE, _by_the_kernel)):
            keys, values = (buffer.clone().to(device) for buffer in buffers)
            sinks = Sinks([keys], [values], 500, rotations.to(device), halves)
            place(sinks, table.to(device), torch.tensor([2, 0, 5, 1, 3]).to(device), left.to(device), shape)
            found.append((keys.cpu(), values.cpu()))
        (one, copied), (other, again) = found
        torch.testing.assert_close(one, other, rtol=2e-2 if kind is torch.bfloat16 else 1e-5, atol=1e-5)
        assert torch.equal(copied, again) and not torch.equal(copied, buffers[1])
        assert torch.equal(one[:500], buffers[0][:500]), "the request's own keys"


def a_turned_key_is_the_one_of_a_later_token() -> None:
    """The result matches SGLang's rotary embedding for both layouts."""
    from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding

    for halves in (True, False):
        rotary = RotaryEmbedding(64, 64, COLUMNS, 10000, halves, torch.float32)
        plain = torch.randn(4, 2 * 64, generator=torch.Generator().manual_seed(7))
        at, left = torch.arange(4), 1500
        first, later = (rotary.forward_native(where, plain.clone(), plain.clone())[1] for where in (at, at + left))
        sinks = Sinks([], [], 0, rotary.cos_sin_cache, halves)
        turned = sinks.turned(first.view(1, 4, 2, 64), torch.tensor([left]))
        torch.testing.assert_close(turned.flatten(), later.flatten(), rtol=1e-4, atol=1e-4)


def _by_the_kernel(sinks: Sinks, *given: Any) -> None:
    kernel.place(sinks, *given)


def lists_of_slots_are_of_the_shortened_requests() -> None:
    """SGLang's kernel for Triton and FlashInfer takes a token's position as a length."""
    steps, shape = 3, Shape.of(1000, 40, 1, AHEAD)
    table, asked, lengths = _table().to(DEVICE), torch.tensor([2, 0, 5, 1, 3]), torch.tensor(LENGTHS)
    before = table.clone()
    window = DraftWindow(shape, table, None)
    seen = rows.Seen(*kernel.shortened(table, asked.to(DEVICE), lengths.to(DEVICE), None, shape, FIRST))
    batch = SimpleNamespace(positions=lengths.to(DEVICE), seq_lens=seen.lengths, req_pool_indices=seen.rows)
    indices, ends = _listed(table, window.placed(batch), steps)
    assert torch.equal(batch.positions.cpu(), lengths), "tokens stay where they are"
    for step in range(steps):
        for at, (row, length) in enumerate(zip(asked.tolist(), LENGTHS, strict=True)):
            own = before[row, : length + step + 1]
            left = shape.left_out(length)
            sinks = FIRST + row * shape.sinks + torch.arange(shape.sinks, device=DEVICE)
            wanted = own if not left else torch.cat([sinks, own[shape.sinks + left :]])
            start, end = ends[step, at].item(), ends[step, at + 1].item()
            assert torch.equal(indices[step, start:end], wanted.to(indices.dtype)), (step, at)


def _listed(table: Any, batch: Any, steps: int) -> tuple[Any, Any]:
    """Return SGLang's slots [steps, places] and the start of each request's slots [steps, requests + 1]."""
    from sglang.kernels.ops.speculative.cache_locs import generate_draft_decode_kv_indices
    from triton import next_power_of_2

    requests = len(batch.seq_lens)
    indices = torch.zeros(steps, requests * COLUMNS, dtype=torch.int64, device=DEVICE)
    ends = torch.zeros(steps, requests + 1, dtype=torch.int32, device=DEVICE)
    generate_draft_decode_kv_indices[(steps, requests, 1)](
        batch.req_pool_indices, table, batch.seq_lens, indices, ends, batch.positions, table.shape[1],
        indices.shape[1], ends.shape[1], next_power_of_2(requests), next_power_of_2(steps),
        next_power_of_2(requests), 1,
    )  # fmt: skip
    return indices, ends


def _table() -> Any:
    """Return a fixed table of random slots with an empty lower half."""
    drawn = torch.Generator().manual_seed(3)
    upper = torch.randint(1, 10**6, (ROWS, COLUMNS), generator=drawn, dtype=torch.int32)
    return torch.cat([upper, torch.zeros_like(upper)])


if __name__ == "__main__":
    checks.tell("window_checks", globals())
