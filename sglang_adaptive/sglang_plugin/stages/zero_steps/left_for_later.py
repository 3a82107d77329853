"""Tracks draft work that zero-step rounds leave for later, by request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_adaptive.policy.config import AdaptiveConfig
from sglang_adaptive.runtime.pending_drafts import PendingDrafts
from sglang_adaptive.runtime.states import SpecRuntimeState
from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.stage import Rest, Stage

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
        self.guard = guard
        self._rounds = self._extends = 0
        self._of_rows: tuple[Any, list[Key]] = None, []
        """The pool rows of the latest batch, and their keys."""

    @property
    def max_every(self) -> int:
        """The most rounds that one pass can process."""
        return self._states[-1].speculative_num_draft_tokens

    def reconfigured(self, config: AdaptiveConfig) -> None:
        """Follow a new configuration from the next round on."""
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
        """Return how many tokens of a leaving request the prefix cache may keep."""
        return self.kept_length(rest(req), req)

    def kept_length(self, owned: int, req: Any) -> int:
        """Return how many of a leaving request's *owned* tokens the prefix cache may keep.

        The prefix cache keeps the KV of target and draft in the same slots, so it must not keep tokens with pending
        rows; the next request with this prefix computes these few tokens again. With overlap one pending row belongs
        to a round that is not committed yet, so one more token is left out. Of n tokens, which are n - 1 pairs, the
        prefix cache keeps n - 1. It must never get fewer than it already protects, or SGLang ends the scheduler.
        """
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

    def _give_up(self, error: Exception) -> None:
        self._pending.settle()
        self.guard.close(error)
