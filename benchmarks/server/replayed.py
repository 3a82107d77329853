"""Acceptance replayed from a trace: a request that names a question accepts what was recorded at its own position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.server.process import replayed
from sglang_adaptive.traces import LEVELS, read

TRACE_FILE = "BENCHMARK_ACCEPTANCE_TRACE"
"""Environment variable: the trace that requests name questions of."""

_POSITION = "_benchmark_position"


class Replay:
    """The recorded counts, and the position of every request.

    With overlap scheduling a request's tokens arrive on the host after its next round has begun. What a round accepts
    is known beforehand, though, so the position is counted here, on the request itself.
    """

    def __init__(self, questions: Sequence[bytes], confidences: Sequence[Any] = ()) -> None:
        """*questions* holds L, 0 to 7, at every position of every question (``benchmarks/traces``).

        *confidences* holds what the draft gave its tokens there: uint8 [positions, 7], by question.
        """
        self._questions = questions
        self._confidences = confidences
        self._requests: Sequence[Any] = ()
        self._starts: list[int] = []

    @classmethod
    def of_file(cls, path: str | None) -> Replay | None:
        """Return the replay of the trace at *path*, None without one. Raises TraceError."""
        if not path:
            return None
        recorded = list(read(path).requests())
        return cls([accepted.tobytes() for _, accepted, _ in recorded], [sure for *_, sure in recorded])

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

    def sure(self, steps: int) -> list[list[float]]:
        """Return what the draft gave each of *steps* drafts, by request of the round; 0 behind the recorded text."""
        return [self._sure_at(req, start, steps) for req, start in zip(self._requests, self._starts, strict=True)]

    def _sure_at(self, request: Any, position: int, steps: int) -> list[float]:
        levels = self._confidences[replayed(request.sampling_params.custom_params) or 0]
        if not 0 <= position < len(levels):
            return [0.0] * steps
        return [(int(level) + 0.5) / LEVELS for level in levels[position][:steps]]

    def accept(self, steps: int, kept: Sequence[int] | None = None) -> list[int]:
        """Return what each request of the round accepts of *steps* drafts, and move on by as much.

        Only the first *kept* of each are verified; None is all. A round of zero steps does not ask: its requests move
        by one token.
        """
        most = [steps] * len(self._requests) if kept is None else kept
        each = zip(self._requests, self._starts, most, strict=True)
        counts = [min(self._at(req, start), limit) for req, start, limit in each]
        for req, start, count in zip(self._requests, self._starts, counts, strict=True):
            setattr(req, _POSITION, start + count + 1)
        return counts

    def shadow(self, request: Any) -> int:
        """Return 1 where the first draft is right after the tokens that *request* has on the host, else 0."""
        return int(self._at(request, len(request.output_ids) - 1) > 0)

    def _at(self, request: Any, position: int) -> int:
        counts = self._questions[replayed(request.sampling_params.custom_params) or 0]
        return counts[position] if 0 <= position < len(counts) else 0
