"""Tracks draft work that zero-step rounds leave for later, by request: what all drafts share, and block drafters'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sglang_adaptive.policy.config import AdaptiveConfig
from sglang_adaptive.runtime.controller import AdaptiveController
from sglang_adaptive.runtime.pending_drafts import PendingDrafts
from sglang_adaptive.runtime.states import SpecRuntimeState
from sglang_adaptive.sglang_plugin import features
from sglang_adaptive.sglang_plugin.configuration import configuration
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.setup import Setup, drafts_blocks
from sglang_adaptive.sglang_plugin.stage import Rest, Stage
from sglang_adaptive.sglang_plugin.stages.zero_steps.catch_up import on_device

Key = tuple[int, int]


class LeftForLater(Stage):
    """The pending rows of one worker's draft, one per request and zero-step round."""

    def __init__(
        self, guard: Guard, pool: Any, states: Sequence[SpecRuntimeState], every: int, pairs: bool = False
    ) -> None:
        """*pool* is SGLang's ReqToTokenPool; *states* ascend by draft tokens; at most *every* rounds are kept.

        An error closes *guard*. *pairs* says whether the prefix cache's keys are pairs of tokens.
        """
        self._pool, self._states, self._pairs = pool, states, int(pairs)
        self._every = min(every, self.max_every)
        self._pending = PendingDrafts()
        self._held: list[Any] = []
        """By pending round, what its rows need."""
        self.guard = guard
        self._rounds = self._extends = 0
        self._of_rows: tuple[Any, list[Key]] = None, []
        """The pool rows of the latest batch, and their keys."""

    @property
    def max_every(self) -> int:
        """The most rounds that one pass can process."""
        return self._states[-1].speculative_num_draft_tokens

    def reconfigured(self, config: AdaptiveConfig) -> None:
        self.set_every(config.zero_step_extend_every)

    def set_every(self, rounds: int) -> None:
        """From the next round on, keep at most *rounds* pending; 1 defers nothing."""
        self._every = min(rounds, self.max_every)

    def snapshot(self) -> dict[str, Any]:
        """Return JSON builtins for /server_info."""
        return {
            "extend_every": 1 if self.guard.closed else self._every,
            "most_extend_every": self.max_every,
            "reason": self.guard.error,
            "held_rounds": self._rounds,
            "extends": self._extends,
        }

    def owned_length(self, rest: Rest, req: Any) -> int:
        """Return how many tokens of a leaving request the prefix cache may keep.

        The prefix cache keeps the KV of target and draft in the same slots, so it must not keep tokens with pending
        rows; the next request with this prefix computes these few tokens again. With overlap one pending row belongs
        to a round that is not committed yet, so one more token is left out. Of n tokens, which are n - 1 pairs, the
        prefix cache keeps n - 1. It must never get fewer than it already protects, or SGLang ends the scheduler.
        """
        owned: int = rest(req)
        try:
            row = req.kv.req_pool_idx
            owed = 0 if row is None else self._pending.owed((row, int(self._pool.req_generation[row])))
            if not owed:
                return owned
            kept: int = max(req.kv.cache_protected_len, req.kv.kv_committed_len - owed)
            return min(owned, kept + self._pairs)
        except Exception as error:
            self._give_up(error)
            return owned

    def _keys(self, batch: Any) -> list[Key]:
        """Identify each request by its pool row and the row's generation, which grows when the row is reused."""
        rows = batch.req_pool_indices_cpu
        if rows is not self._of_rows[0]:  # SGLang makes a new tensor when a request joins or leaves
            keys = list(zip(rows.tolist(), self._pool.req_generation[rows].tolist(), strict=True))
            self._of_rows = rows, keys
        return self._of_rows[1]

    def _hold(self, keys: list[Key], rows: Any) -> None:
        """Keep the *rows* of a round of the requests *keys*, one each."""
        self._pending.hold(keys)
        self._held.append(rows)
        self._rounds += 1

    def _settle(self, keys: Sequence[Key] = ()) -> None:
        """Drop all pending rows: those of the requests *keys* were processed."""
        self._pending.settle(keys)
        self._held.clear()

    def _give_up(self, error: Exception) -> None:
        self._settle()
        self.guard.close(error)


Append = Callable[..., None]
"""SGLang's ``_append_target_hidden_to_draft_kv_by_loc``."""


class DeferredAppend(LeftForLater):
    """Defers the keys and values of a block drafter's zero-step rounds.

    SGLang 0.5.23 makes them from the target's hidden states after every verify, for each layer of the draft. A token's
    keys and values depend only on its own hidden states, so the rows of several rounds can be made together: after
    eight rounds, and before a block is drafted. A round's rows are hidden states [requests, features], KV slots and
    positions [requests].
    """

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
                self._hold(keys, rows)
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
        self._settle(keys)
