"""Counts accepted drafts by how long the requests were: a draft that was trained on short texts loses on long ones."""

from __future__ import annotations

from collections.abc import Sequence

SHORTEST = 512
"""Tokens below which requests are in the first bin; each further bin goes twice as far, and the last has no end."""
BINS = 8
EVERY = 8
"""Of as many rounds one is counted: to count 64 requests takes tens of microseconds."""


class ContextLengths:
    """Requests of rounds that drafted, with drafts verified and accepted, by the requests' lengths."""

    def __init__(self) -> None:
        self._rounds = 0
        self._requests, self._verified, self._accepted = [0] * BINS, [0] * BINS, [0] * BINS

    def add(self, lengths: Sequence[int], accepted: Sequence[int], verified: Sequence[int]) -> None:
        """Count a round, or leave it out: by request its length in tokens, its accepted and its verified drafts."""
        self._rounds += 1
        if self._rounds % EVERY != 1:
            return
        for length, right, drafts in zip(lengths, accepted, verified, strict=True):
            at = min((length // SHORTEST).bit_length(), BINS - 1)
            self._requests[at] += 1
            self._verified[at] += drafts
            self._accepted[at] += right

    def snapshot(self) -> list[dict[str, int]]:
        """Return JSON builtins by bin: ``from`` and, but for the last, ``to`` in tokens, and the counts."""
        ends = [0, *(SHORTEST << at for at in range(BINS - 1))]
        counts = zip(self._requests, self._verified, self._accepted, strict=True)
        return [
            {
                "from": start,
                **({"to": ends[at + 1]} if at + 1 < BINS else {}),
                "requests": n,
                "drafted": d,
                "accepted": a,
            }
            for at, (start, (n, d, a)) in enumerate(zip(ends, counts, strict=True))
        ]
