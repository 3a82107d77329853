"""Pending rows of deferred draft extends: how many each request has, where they are, and when they are extended."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence, Set
from dataclasses import dataclass

# The intervals of the deferred draft extend at zero steps: how many rounds share one output.
#
# An output has the draft's next token for each request, which the next round compares with the target's
# (``RoundObservation.shadow_accepts``). Rows in between stay pending, or a cheaper pass writes only their KV cache.


MOST_WRITES = 3
"""The most KV-only passes between two outputs."""
LEAST_EVERY = 3
"""If fewer rounds than this may be pending, every pass has an output."""
SHADOW_ROUNDS = 4
"""Rounds per shadow draft, over all requests, if the policy wants more of them."""


def writes_between(requests: int, every: int) -> int:
    """Return the number of KV-only passes between two outputs, with at most *every* rounds pending.

    With eight rounds a single request yields a shadow draft every 15 rounds; a large batch yields enough at longer
    intervals. A KV-only pass leaves one row pending, so it processes *every* - 1 rounds, which must be more than one.
    """
    return min(MOST_WRITES, max(1, requests // 8)) if every >= LEAST_EVERY else 0


def extend_schedule(requests: int, every: int, more: bool) -> tuple[int, int]:
    """Return the most pending rounds, and the number of KV-only passes between two outputs.

    With *more*, few requests yield a shadow draft per ``SHADOW_ROUNDS``, or as close to that as *every* allows.
    """
    writes = writes_between(requests, every)
    wanted = SHADOW_ROUNDS * requests
    return (min(every, wanted), 0) if more and wanted < _apart(every, writes) else (every, writes)


def rounds_between_outputs(requests: int, every: int, more: bool) -> int:
    """Return the rounds from one output to the next."""
    return _apart(*extend_schedule(requests, every, more))


def _apart(held: int, writes: int) -> int:
    return held + writes * (held - 1)


@dataclass(frozen=True, slots=True)
class CatchUp:
    """One draft extend over all pending tokens of the requests of a batch."""

    rows: tuple[int, ...]
    """Rows of the batch with pending tokens, ascending."""
    counts: tuple[int, ...]
    """Pending tokens of each row, at least one."""
    sources: tuple[tuple[int, ...], ...]
    """Positions of each row's tokens among all pending tokens, oldest first."""

    def split(self, apart: Set[int]) -> Iterator[CatchUp]:
        """Yield the part with the rows that are not in *apart*, then the rest; empty parts are skipped."""
        if not apart:
            yield self
            return
        each = list(zip(self.rows, self.counts, self.sources, strict=True))
        for inside in (False, True):
            if own := [one for one in each if (one[0] in apart) is inside]:
                rows, counts, sources = zip(*own, strict=True)
                yield CatchUp(rows, counts, sources)

    def padded_sources(self, width: int) -> list[int]:
        """Return the flat sources with *width* tokens per request; a short one repeats its last token."""
        return [place for own in self.sources for place in (*own, *(own[-1],) * (width - len(own)))]

    def is_one_of_each(self, held: Sequence[int]) -> bool:
        """Whether all pending rounds had exactly these requests, in this order, with one token each.

        *held* are the token counts of each round.
        """
        requests = len(self.rows)
        if any(tokens != requests for tokens in held):
            return False
        return all(own == tuple(range(row, requests * len(held), requests)) for row, own in enumerate(self.sources))

    def last_places(self, width: int) -> list[int]:
        """Return the index of each request's last token in :meth:`padded_sources`."""
        return [index * width + count - 1 for index, count in enumerate(self.counts)]


class PendingDrafts:
    """The tokens of zero-step rounds that the draft has not processed yet.

    Every zero-step round yields one token per request, so the counts are known without reading from the device. A key
    identifies a request by its row of the pools. Tokens are kept in the order of rounds since the last :meth:`settle`,
    which the caller calls before there are too many.
    """

    def __init__(self) -> None:
        self._held: list[dict[Hashable, int]] = []
        """By round, the place of each request's token among all pending tokens."""
        self._left_out: dict[Hashable, int] = {}
        self._tokens = 0

    @property
    def rounds(self) -> int:
        return len(self._held)

    def hold(self, keys: Sequence[Hashable]) -> None:
        """Add a round that verified one token for each of *keys*, in this order."""
        self._held.append(dict(zip(keys, itertools.count(self._tokens))))
        self._tokens += len(keys)

    def owed(self, key: Hashable) -> int:
        """Return how many of the request's latest tokens the draft has not processed."""
        return sum(key in places for places in self._held) or self._left_out.get(key, 0)

    def catch_up(self, keys: Sequence[Hashable]) -> CatchUp | None:
        """Return the pending tokens of the batch of *keys*; None when there are none."""
        requests, order = len(keys), [*keys]
        if self._tokens == requests * len(self._held) and all([*places] == order for places in self._held):
            sources = [tuple(range(row, self._tokens, requests)) for row in range(requests)]
        else:
            sources = [tuple([places[key] for places in self._held if key in places]) for key in keys]
        rows = tuple([row for row, own in enumerate(sources) if own])
        if not rows:
            return None
        owing = tuple([sources[row] for row in rows])
        return CatchUp(rows, tuple(map(len, owing)), owing)

    def all_in_latest(self, keys: Sequence[Hashable]) -> bool:
        """Whether the latest round has a token of each of *keys*."""
        return bool(self._held) and self._held[-1].keys() >= {*keys}

    def keep_latest(self, keys: Sequence[Hashable]) -> None:
        """Drop all but the latest round, which has a token of each of *keys*; the draft's KV cache has the others."""
        latest, kept = self._held[-1], {*keys}
        earlier = self._tokens - len(latest)
        self.settle(keys)
        self._held = [{key: place - earlier for key, place in latest.items() if key in kept}]
        self._tokens = len(latest)

    def settle(self, keys: Sequence[Hashable] = ()) -> None:
        """Drop all pending rounds: the requests of *keys* were extended, and the others are leaving.

        With overlap the scheduler omits a finished request from the next round, and releases it only after that round
        began. So :meth:`owed` still counts it until the next call.
        """
        leaving = set[Hashable]().union(*self._held).difference(keys)
        self._left_out = {key: self.owed(key) for key in leaving}
        self._held, self._tokens = [], 0
