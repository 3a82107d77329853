"""Defers the keys and values of a block drafter's zero-step rounds.

SGLang 0.5.23 makes them from the target's hidden states after every verify, for each layer of the draft. A token's keys
and values depend only on its own hidden states, so the rows of several rounds can be made together: after eight rounds,
and before a block is drafted. `left_for_later.py` says what the prefix cache keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.sglang_plugin import features
from sglang_adaptive.sglang_plugin.configuration import configuration
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.setup import Setup, drafts_blocks
from sglang_adaptive.sglang_plugin.stage import Stage
from sglang_adaptive.sglang_plugin.stages.zero_steps.catch_up import on_device
from sglang_adaptive.sglang_plugin.stages.zero_steps.left_for_later import Key, LeftForLater

Append = Callable[..., None]
"""SGLang's ``_append_target_hidden_to_draft_kv_by_loc``."""


class DeferredAppend(LeftForLater):
    """Keeps hidden states of zero-step rounds and appends them to the draft's KV together."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._held: list[tuple[Tensor, Tensor, Tensor]] = []
        """By pending round: hidden states [requests, features], KV slots and positions [requests]."""

    @classmethod
    def where_it_can(cls, worker: Any, controller: AdaptiveController) -> list[Stage]:
        """Return a stage that defers the appends of *worker*, a block drafter's; none where that is not possible."""
        from sglang.srt.runtime_context import get_spec

        tiers = controller.states.tiers
        if not drafts_blocks(get_spec()):
            return []
        if tiers[0] or len(tiers) == 1 or not features.may("deferred-append", Setup.of(worker)):
            return []
        pool, every = worker.model_runner.req_to_token_pool, configuration().zero_step_extend_every
        return [cls(Guard("deferred-append"), pool, controller.states.by_steps, every)]

    def after_verify(
        self, append: Append, batch: Any, *, target_hidden: Tensor, cache_loc: Tensor, positions: Tensor, **more: Any
    ) -> bool:
        """Replace *append* at the end of a zero-step round of *batch*: keep its rows, and append all when they are due.

        Return whether the draft's KV has all rows.
        """
        if not self.guard.closed and (self._every > 1 or self._pending.rounds):
            try:
                keys = self._keys(batch)
                # Copies, because the next round overwrites these tensors. Rows past the slots are padding.
                rows = target_hidden[: len(keys)].clone(), cache_loc.clone(), positions.clone()
                self._pending.hold(keys)
                self._held.append(rows)
                self._rounds += 1
                if self._pending.rounds < self._every:
                    return False
                self._run(append, keys)
                return True
            except Exception as error:
                self._give_up(error)
        append(target_hidden=target_hidden, cache_loc=cache_loc, positions=positions, **more)
        return True

    def before_draft(self, append: Append, batch: Any) -> None:
        """Append the pending rows of *batch*'s requests before a block is drafted."""
        if self._pending.rounds:
            try:
                self._run(append, self._keys(batch))
            except Exception as error:
                self._give_up(error)

    def _run(self, append: Append, keys: list[Key]) -> None:
        plan = self._pending.catch_up(keys)
        if plan is not None:
            hidden, slots, positions = (torch.cat(parts) for parts in zip(*self._held, strict=True))
            if not plan.is_one_of_each([len(slots) for _, slots, _ in self._held]):
                places = [place for own in plan.sources for place in own]
                (sources,) = on_device([places], hidden.device)
                hidden, slots, positions = hidden[sources], slots[sources], positions[sources]
            append(target_hidden=hidden, cache_loc=slots, positions=positions)
            self._extends += 1
        self._pending.settle(keys)
        self._held.clear()

    def _give_up(self, error: Exception) -> None:
        self._held.clear()
        super()._give_up(error)
