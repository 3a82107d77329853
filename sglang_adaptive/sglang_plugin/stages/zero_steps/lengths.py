"""Tracks request lengths on the host after a zero-step round, without a wait.

Some attention backends, such as FlashInfer, plan a round on the host from the request lengths. The tokens of a drafted
round are known only when it ends, so SGLang 0.5.23 waits for the previous round before each round, and the device is
idle while the host prepares the next one. A zero-step round adds one token per request, so the lengths after it are
known in advance, and the next round is launched while it runs, as without speculation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_adaptive.sglang_plugin.guard import Guard
from sglang_adaptive.sglang_plugin.stage import Rest, Stage


class KnownLengths(Stage):
    """Request lengths after the latest zero-step round; empty after any other decode round."""

    def __init__(self, unread: Callable[[Any], bool] = lambda batch: False) -> None:
        """*unread* says whether the round of a batch reads no lengths on the host."""
        self._unread = unread
        self.guard = Guard("host-lengths")
        self._requests: list[Any] = []
        self._after: Any = None
        """Tokens of each of these requests, including the one from the round, int64 on the host."""

    def before_zero_steps(self, batch: Any) -> None:
        """Note how long *batch*'s requests will be after the zero-step round that begins."""
        if batch.seq_lens_cpu is not None:
            self.guard.attempt(self._expect, batch)

    def lengths_on_host(self, rest: Rest, future_map: Any, batch: Any, **kwargs: Any) -> None:
        """Give *batch* its lengths on the host where they are known, without SGLang's wait; none if they are unread."""
        needed = future_map.needs_cpu_seq_lens
        known = self.guard.attempt(self._known, batch) if needed else None
        if needed and self._unread(batch):
            known = None
        elif known is None:
            rest(future_map, batch, **kwargs)
            return
        future_map.needs_cpu_seq_lens = False
        try:
            rest(future_map, batch, **kwargs)
        finally:
            future_map.needs_cpu_seq_lens = True
        if known is not None:
            batch.seq_lens_cpu, batch.seq_lens_sum = known, int(known.sum())

    def _expect(self, batch: Any) -> None:
        assert len(batch.reqs) == len(batch.seq_lens_cpu)
        self._requests, self._after = [*batch.reqs], batch.seq_lens_cpu + 1

    def _known(self, batch: Any) -> Any:
        """Return the lengths of *batch*'s requests, int64 [requests] on the host; None if one is unknown."""
        if batch.spec_info is None or batch.spec_info.future_indices is None:
            if not set(self._requests).isdisjoint(batch.reqs):  # a prefill starts or restarts them
                self._after = None
            return None
        # Each decode round clears all lengths; a zero-step round sets them again when it begins.
        after, self._after = self._after, None
        if after is None or batch.reqs == self._requests:
            return after
        places = {request: place for place, request in enumerate(self._requests)}
        rows = [places.get(request) for request in batch.reqs]
        return None if None in rows else after[rows]
