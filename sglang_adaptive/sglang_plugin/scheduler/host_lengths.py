"""The lengths of requests on the host after a zero-step round, without a wait.

Some attention backends plan a round on the host, by each request's length: FlashInfer does. How many tokens a drafted
round brings is known when it ends, so before each round SGLang 0.5.23 waits there for the round before, and the device
is idle while the host prepares the next one. A zero-step round brings one token a request. So the lengths after it are
those before it plus one, and the next round is launched while it runs, as without speculation.
SGLANG_ADAPTIVE_HOST_LENGTHS=0 in the server's environment restores SGLang's wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sglang_adaptive.sglang_plugin.hooking.fallback import Fallback

_fallback = Fallback(
    "adaptive: the host waits for the lengths of requests before each round from now on", "SGLANG_ADAPTIVE_HOST_LENGTHS"
)


class ExpectedLengths:
    """How long the requests of the latest zero-step round are after it; empty after any other decode round."""

    def __init__(self) -> None:
        self._after: dict[Any, int] = {}
        """Tokens by request, the one that the round brings included."""

    def expect(self, requests: Sequence[Any], before: Sequence[int]) -> None:
        """Begin a zero-step round of *requests*, which have *before* tokens."""
        self._after = {request: length + 1 for request, length in zip(requests, before, strict=True)}

    def take(self, requests: Sequence[Any]) -> list[int] | None:
        """Return the lengths of *requests* as a decode round begins, None where one is not known; forget all.

        Who begins a zero-step round says so by ``expect``.
        """
        after, self._after = self._after, {}
        known = [after.get(request) for request in requests]
        return None if None in known else known  # type: ignore[return-value]

    def drop(self, requests: Sequence[Any]) -> None:
        """Forget *requests*: a prefill begins them, or begins them again."""
        for request in requests:
            self._after.pop(request, None)


_lengths = ExpectedLengths()


def expect(worker: Any, batch: Any) -> None:
    """Before a zero-step round: note how long its requests will be after it."""
    if not _fallback.in_use and batch.seq_lens_cpu is not None:
        with _fallback:
            _lengths.expect(batch.reqs, batch.seq_lens_cpu.tolist())


def resolve(original: Callable[..., None], future_map: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    """Around FutureMap.resolve_seq_lens_cpu: after a zero-step round do not wait for the lengths on the host."""
    known = None
    if not _fallback.in_use and future_map.needs_cpu_seq_lens:
        with _fallback:
            known = _known(batch)
    if known is None:
        original(future_map, batch, *args, **kwargs)
        return
    future_map.needs_cpu_seq_lens = False
    try:
        original(future_map, batch, *args, **kwargs)
    finally:
        future_map.needs_cpu_seq_lens = True
    batch.seq_lens_cpu, batch.seq_lens_sum = known, int(known.sum())


def _known(batch: Any) -> Any:
    """Return the lengths of the batch's requests, [requests] int64 on the host; None where they are not known."""
    import torch

    if batch.spec_info is None or batch.spec_info.future_indices is None:
        _lengths.drop(batch.reqs)
        return None
    lengths = _lengths.take(batch.reqs)
    return None if lengths is None else torch.tensor(lengths, dtype=torch.int64)
