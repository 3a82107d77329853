"""Copies the sinks of long requests, with their keys rotated to the positions right before the window.

A key carries its token's position as a rotation. Unchanged sinks would be as far away as the request is long, farther
than in the draft's training. So copies, with keys rotated on by the number of tokens left out after them, are kept in
KV slots of the draft's pool that SGLang does not know of, a few per row of the slot table. They are written before each
pass of the draft, because the window moves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sglang_adaptive.policy.config import sinks_of
from sglang_adaptive.sglang_plugin.configuration import configuration
from sglang_adaptive.sglang_plugin.draft_window.rows import Shape


def built_with_room(
    build: Callable[..., Any], configurator: Any, worker: Any, *, max_total_num_tokens: int, **kw: Any
) -> Any:
    """Return the pool of keys and values from SGLang's *build*, with slots for the sinks if it is the draft's.

    The pool reports the size that SGLang asked for, so nothing else uses these slots.
    """
    more = 0
    if configurator.is_draft_worker and configuration().draft_window is not None:
        page, table = configurator.pool_page_size, worker.target_worker.model_runner.req_to_token_pool.req_to_token
        more = table.shape[0] // 2 * sinks_of(page) + page
    pool = build(configurator, max_total_num_tokens=max_total_num_tokens + more, **kw)
    if more:
        pool.size = max_total_num_tokens
    return pool


@dataclass(frozen=True, slots=True)
class Sinks:
    """The places of the copies, and how to rotate keys."""

    keys: list[Tensor]
    """By layer of the draft, its buffer [slots, heads, width]."""
    values: list[Tensor]
    first_slot: int
    """The copies of row r begin at *first_slot* + r * sinks."""
    rotations: Tensor
    """SGLang's cosines and sines by position, [positions, rotary width]: cosines in the first half."""
    halves: bool
    """Whether the elements of a rotated pair are half the rotary width apart (NeoX) and not side by side."""

    @classmethod
    def of(cls, draft: Any, shape: Shape) -> Sinks | str:
        """Return the sinks of SGLang's *draft* worker, or a phrase that says why its keys cannot be rotated."""
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        runner = draft.draft_runner
        pool, page, rows = runner.token_to_kv_pool, shape.page, draft.req_to_token_pool._alloc_size
        plain = type(pool) is MHATokenToKVPool and pool.kv_cache_layout == "nhd" and not pool.post_capture_active
        if not plain:
            return f"a {type(pool).__name__} stores keys differently"
        rotary = {id(one): one for module in runner.model.modules() if (one := getattr(module, "rotary_emb", None))}
        if len(rotary) != 1:
            return "its layers do not share rotary positions"
        (turns,) = rotary.values()
        first = (pool.k_buffer[0].shape[0] - rows * shape.sinks) // page * page
        if first < draft.token_to_kv_pool_allocator.size + page:
            return "its pool has no slots to spare"
        layers = range(pool.start_layer, pool.start_layer + pool.layer_num)
        keys, values = ([of(layer) for layer in layers] for of in (pool.get_key_buffer, pool.get_value_buffer))
        return cls(keys, values, first, turns.cos_sin_cache, turns.is_neox_style)

    def place(self, table: Tensor, rows: Tensor, left: Tensor, shape: Shape) -> None:
        """Write the copies for the requests of *rows* [requests], each with *left* [requests] tokens left out."""
        if table.is_cuda:
            from sglang_adaptive.sglang_plugin.draft_window import kernel

            kernel.place(self, table, rows, left, shape)
            return
        rows, left = rows[left > 0].long(), left[left > 0].long()
        sources = table[rows, : shape.sinks].long()
        targets = self.first_slot + rows[:, None] * shape.sinks + torch.arange(shape.sinks)
        for keys, values in zip(self.keys, self.values, strict=True):
            values[targets] = values[sources]
            keys[targets] = self.turned(keys[sources].float(), left).to(keys.dtype)

    def turned(self, keys: Tensor, by: Tensor) -> Tensor:
        """Return *keys* [requests, sinks, heads, width] rotated on by *by* [requests] tokens."""
        cos, sin = self.rotations[by].float().chunk(2, dim=-1)
        scale = (cos * cos + sin * sin).rsqrt()  # some rotations are scaled, and keys are scaled already
        cos, sin = ((one * scale)[:, None, None] for one in (cos, sin))
        width = 2 * cos.shape[-1]
        turning, rest = keys[..., :width], keys[..., width:]
        one, other = turning.chunk(2, dim=-1) if self.halves else (turning[..., ::2], turning[..., 1::2])
        pair = (one * cos - other * sin, other * cos + one * sin)
        turned = torch.cat(pair, dim=-1) if self.halves else torch.stack(pair, dim=-1).flatten(-2)
        return torch.cat([turned, rest], dim=-1)
