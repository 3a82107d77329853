"""The lengths of requests on the host after a zero-step round, without a wait.

Some attention backends plan a round on the host, by each request's length: FlashInfer does. How many tokens a drafted
round brings is known when it ends, so before each round SGLang 0.5.23 waits there for the round before, and the device
is idle while the host prepares the next one. A zero-step round brings one token a request. So the lengths after it are
those before it plus one, and the next round is launched while it runs, as without speculation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sglang_adaptive.sglang_plugin import env
from sglang_adaptive.sglang_plugin.guard import Guard


class KnownLengths:
    """How long the requests of the latest zero-step round are after it; empty after any other decode round."""

    def __init__(self) -> None:
        self.guard = Guard(
            "adaptive: the host waits for the lengths of requests before each round from now on", env.HOST_LENGTHS
        )
        self._after: dict[Any, int] = {}
        """Tokens by request, the one that the round brings included."""

    def expect(self, batch: Any) -> None:
        """Begin a zero-step round of *batch*: note how long its requests will be after it."""
        if batch.seq_lens_cpu is not None:
            self.guard.attempt(self._expect, batch.reqs, batch.seq_lens_cpu.tolist())

    def resolve(
        self, original: Callable[..., None], future_map: Any, batch: Any, unread: Callable[[], bool], **kwargs: Any
    ) -> None:
        """Give *batch* its lengths on the host where they are known, without SGLang's wait in *original*.

        *unread* says whether nobody will read them; then the batch has none.
        """
        needed = future_map.needs_cpu_seq_lens
        known = self.guard.attempt(self._known, batch) if needed else None
        if needed and unread():
            known = None
        elif known is None:
            original(future_map, batch, **kwargs)
            return
        future_map.needs_cpu_seq_lens = False
        try:
            original(future_map, batch, **kwargs)
        finally:
            future_map.needs_cpu_seq_lens = True
        if known is not None:
            batch.seq_lens_cpu, batch.seq_lens_sum = known, int(known.sum())

    def _expect(self, requests: Sequence[Any], before: Sequence[int]) -> None:
        self._after = {request: length + 1 for request, length in zip(requests, before, strict=True)}

    def _known(self, batch: Any) -> Any:
        """Return the lengths of the batch's requests, [requests] int64 on the host; None where one is not known."""
        import torch

        if batch.spec_info is None or batch.spec_info.future_indices is None:
            for request in batch.reqs:  # a prefill begins them, or begins them again
                self._after.pop(request, None)
            return None
        # Each decode round forgets all; who begins a zero-step round says so by `expect`.
        after, self._after = self._after, {}
        lengths = [after.get(request) for request in batch.reqs]
        return None if None in lengths else torch.tensor(lengths, dtype=torch.int64)
