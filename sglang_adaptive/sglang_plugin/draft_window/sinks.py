"""The sinks of long requests, with their keys turned to the places right before the window.

A key carries its token's position as a rotation. Left as they are, sinks would be as far away as the request is long,
farther than the draft has ever seen. Copies with their keys turned on by as many tokens as are left out behind them lie
in KV slots of the draft's pool that SGLang does not know of, a few for each row of the slot table. They are written
before each pass of the draft, because the window moves on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sglang_adaptive.sglang_plugin.configuration import configuration
from sglang_adaptive.sglang_plugin.draft_window.rows import Shape, sinks_of


def built_with_room(
    build: Callable[..., Any], configurator: Any, worker: Any, *, max_total_num_tokens: int, **kw: Any
) -> Any:
    """Return the pool of keys and values by SGLang's *build*, with slots for the sinks where it is the draft's.

    SGLang is told the size that it asked for, so nobody else uses them.
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
    """Where the copies are, and how keys are rotated."""

    keys: list[Tensor]
    """By layer of the draft, its buffer [slots, heads, width]."""
    values: list[Tensor]
    first_slot: int
    """The copies of row r begin at *first_slot* + r * sinks."""
    rotations: Tensor
    """SGLang's cosines and sines by position, [positions, rotary width]: cosines in the first half."""
    halves: bool
    """Whether a pair that turns together is half the rotary width apart (NeoX), and not side by side."""

    @classmethod
    def of(cls, draft: Any, shape: Shape) -> Sinks | str:
        """Return those of SGLang's *draft* worker; a phrase where its keys cannot be turned."""
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        runner = draft.draft_runner
        pool, page, rows = runner.token_to_kv_pool, shape.page, draft.req_to_token_pool._alloc_size
        plain = type(pool) is MHATokenToKVPool and pool.kv_cache_layout == "nhd" and not pool.post_capture_active
        if not plain:
            return f"a {type(pool).__name__} stores keys in another way"
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
        """Write the copies for the requests of *rows* [requests], of which *left* tokens are left out; 0 for none."""
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
        """Return *keys* [requests, sinks, heads, width] turned on by *by* [requests] tokens."""
        cos, sin = self.rotations[by].float().chunk(2, dim=-1)
        scale = (cos * cos + sin * sin).rsqrt()  # some rotations are scaled, and the keys are already
        cos, sin = ((one * scale)[:, None, None] for one in (cos, sin))
        width = 2 * cos.shape[-1]
        turning, rest = keys[..., :width], keys[..., width:]
        one, other = turning.chunk(2, dim=-1) if self.halves else (turning[..., ::2], turning[..., 1::2])
        pair = (one * cos - other * sin, other * cos + one * sin)
        turned = torch.cat(pair, dim=-1) if self.halves else torch.stack(pair, dim=-1).flatten(-2)
        return torch.cat([turned, rest], dim=-1)
