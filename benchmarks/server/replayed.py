"""Acceptance replayed from a trace: a request that names a question accepts what was recorded at its own position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.server.process import replayed
from sglang_adaptive.traces import read

TRACE_FILE = "BENCHMARK_ACCEPTANCE_TRACE"
"""Environment variable: the trace that requests name questions of."""

_POSITION = "_benchmark_position"


class Replay:
    """The recorded counts, and the position of every request.

    With overlap scheduling a request's tokens arrive on the host after its next round has begun. What a round accepts
    is known beforehand, though, so the position is counted here, on the request itself.
    """

    def __init__(self, questions: Sequence[bytes]) -> None:
        """*questions* holds L, 0 to 7, at every position of every question (``benchmarks/traces``)."""
        self._questions = questions
        self._requests: Sequence[Any] = ()
        self._starts: list[int] = []

    @classmethod
    def of_file(cls, path: str | None) -> Replay | None:
        """Return the replay of the trace at *path*, None without one. Raises TraceError."""
        return cls([accepted.tobytes() for _, accepted, _ in read(path).requests()]) if path else None

    def begin(self, requests: Sequence[Any]) -> None:
        """Before a round of *requests*: note where each begins, and add the token that every round yields."""
        self._requests = [req for req in requests if replayed(req.sampling_params.custom_params) is not None]
        self._starts = [getattr(req, _POSITION, 0) for req in self._requests]
        for req, start in zip(self._requests, self._starts, strict=True):
            setattr(req, _POSITION, start + 1)

    def concerns(self, requests: int) -> bool:
        """Return whether the round of *requests* requests is replayed. Raises RuntimeError where only some are."""
        if self._requests and len(self._requests) != requests:
            raise RuntimeError(f"{len(self._requests)} of {requests} requests name a question of the trace")
        return bool(self._requests)

    def accept(self, steps: int) -> list[int]:
        """Return what each request of the round accepts of *steps* drafts, and move on by as much.

        A round of zero steps does not ask: its requests move by one token.
        """
        counts = [min(self._at(req, start), steps) for req, start in zip(self._requests, self._starts, strict=True)]
        for req, start, count in zip(self._requests, self._starts, counts, strict=True):
            setattr(req, _POSITION, start + count + 1)
        return counts

    def shadow(self, request: Any) -> int:
        """Return 1 where the first draft is right after the tokens that *request* has on the host, else 0."""
        return int(self._at(request, len(request.output_ids) - 1) > 0)

    def _at(self, request: Any, position: int) -> int:
        counts = self._questions[replayed(request.sampling_params.custom_params) or 0]
        return counts[position] if 0 <= position < len(counts) else 0
