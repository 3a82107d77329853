"""Lets the draft attend to sinks and a window of long requests, in its steps and in its extends.

EAGLE-3 drafts are trained on a few thousand tokens, and their accept length drops beyond that. The target verifies over
the whole request, so outputs are the same. docs/performance.md has the gains.
"""

from __future__ import annotations

import copy
import logging
from typing import Any

import torch

from sglang_adaptive.sglang_plugin.configuration import configuration
from sglang_adaptive.sglang_plugin.draft_window import rows
from sglang_adaptive.sglang_plugin.draft_window.rows import Shape
from sglang_adaptive.sglang_plugin.draft_window.setup_check import shape_or_reason
from sglang_adaptive.sglang_plugin.draft_window.sinks import Sinks
from sglang_adaptive.sglang_plugin.guard import Guard

logger = logging.getLogger(__name__)


class DraftWindow:
    """Shortens long requests in the batches that one scheduler's draft runs."""

    def __init__(self, shape: Shape, table: Any, sinks: Sinks) -> None:
        """*table* is SGLang's, with twice the rows (`rows.double_if_asked`)."""
        self.shape = shape
        self._table = table
        self._sinks = sinks
        self.guard = Guard("adaptive: the draft attends to whole requests from now on")
        self.passes = 0
        """Draft passes in which a request was, or may have been, shortened."""

    @classmethod
    def where_it_can(cls, worker: Any) -> DraftWindow | str | None:
        """Return what shortens requests for *worker*'s draft, or why a requested window cannot; None without one."""
        if configuration().draft_window is None:
            return None
        try:
            shape = shape_or_reason(worker)
            sinks = shape if isinstance(shape, str) else Sinks.of(worker._draft_worker, shape)
        except Exception as error:
            logger.exception("adaptive: the setup could not be checked")
            shape = sinks = f"{type(error).__name__}: {error}"
        if isinstance(shape, str) or isinstance(sinks, str):
            logger.warning("adaptive: the draft attends to whole requests: %s", sinks)
            return str(sinks)
        logger.info(
            "adaptive: in requests of more than %d tokens the draft attends to the first %d and the latest %d",
            *(shape.whole, shape.sinks, shape.window),
        )
        made = cls(shape, worker._draft_worker.req_to_token_pool.req_to_token, sinks)
        made.guard.attempt(made.compile)
        return made

    def compile(self) -> None:
        """Run the kernels once on an empty request, so that no long request waits for a compilation."""
        nothing = torch.zeros(1, dtype=torch.int64, device=self._table.device)
        for prefixes in (None, nothing.to(torch.int32)):
            self._seen(nothing, nothing, prefixes)

    def snapshot(self) -> dict[str, Any]:
        """Return JSON builtins for /server_info."""
        shape = self.shape
        return {
            "trained": shape.whole,
            "window": shape.window,
            "sinks": shape.sinks,
            "passes": self.passes,
            "reason": self.guard.error,
        }

    def shorten(self, forward_batch: Any, batch: Any) -> bool:
        """Shorten the requests of *forward_batch*, the draft's view of *batch*; return whether it changed."""
        if self.guard.closed or forward_batch.forward_mode.is_idle() or not self._may_be_long(batch):
            return False
        return bool(self.guard.attempt(self._shorten, forward_batch))

    def placed(self, forward_batch: Any) -> Any:
        """Return *forward_batch* for SGLang's lists of KV slots, which use a token's position as a length.

        With chains both are the same number, except in shortened requests, whose tokens keep their positions.
        """
        seen = copy.copy(forward_batch)
        seen.positions = forward_batch.seq_lens
        return seen

    def _may_be_long(self, batch: Any) -> bool:
        """Whether a request of *batch* may be long, as far as the host knows its length."""
        if batch.seq_lens_cpu is not None:
            return bool(int(batch.seq_lens_cpu.max()) > self.shape.whole)
        # One round may be running, and another may have an unprocessed result.
        return bool(max(req.kv.kv_committed_len for req in batch.reqs) + 2 * self.shape.ahead > self.shape.whole)

    def _shorten(self, forward_batch: Any) -> bool:
        extends = not forward_batch.forward_mode.is_decode()
        prefixes = forward_batch.extend_prefix_lens if extends else None
        seen = self._seen(forward_batch.req_pool_indices, forward_batch.seq_lens, prefixes)
        on_host = forward_batch.seq_lens_cpu
        before = forward_batch.extend_prefix_lens_cpu if extends else None
        if on_host is not None:
            known = on_host if before is None else on_host.new_tensor(before)
            left = self.shape.left_out(known)
            forward_batch.seq_lens_cpu = on_host - left
            forward_batch.seq_lens_sum = int(forward_batch.seq_lens_cpu.sum())
            if before is not None:
                forward_batch.extend_prefix_lens_cpu = (known - left).tolist()
        forward_batch.req_pool_indices, forward_batch.seq_lens = seen.rows, seen.lengths
        if extends:
            forward_batch.extend_prefix_lens = seen.prefixes
        self.passes += 1
        return True

    def _seen(self, own: Any, lengths: Any, prefixes: Any) -> rows.Seen:
        """Write the rows and sinks of the long requests among rows *own*; return what `rows.shortened` does."""
        seen = rows.shortened(self._table, own, lengths, prefixes, self.shape, self._sinks.first_slot)
        self._sinks.place(self._table, own, seen.left, self.shape)
        return seen
