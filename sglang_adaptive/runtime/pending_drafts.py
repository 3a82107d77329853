"""Which rows of the draft's extend are owed, and where the held rows of each request lie."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CatchUp:
    """One extend of the draft over everything that the requests of a batch owe."""

    rows: tuple[int, ...]
    """Rows of the batch that owe something, ascending."""

    counts: tuple[int, ...]
    """Tokens owed by each of them, at least one."""

    sources: tuple[tuple[int, ...], ...]
    """For each of them, its tokens' places among all held tokens, oldest first."""

    def padded_sources(self, width: int) -> list[int]:
        """Return the sources at *width* tokens a request, flat; a short one repeats its last, as filling."""
        return [place for own in self.sources for place in (*own, *(own[-1],) * (width - len(own)))]

    def is_one_of_each(self, held: Sequence[int]) -> bool:
        """Whether every request owes one token of each held round, and all rounds held these alone, in this order.

        *held* is how many tokens each round held.
        """
        requests = len(self.rows)
        if any(tokens != requests for tokens in held):
            return False
        return all(own == tuple(range(row, requests * len(held), requests)) for row, own in enumerate(self.sources))

    def last_places(self, width: int) -> list[int]:
        """Return where each request's last token lies in :meth:`padded_sources`."""
        return [index * width + count - 1 for index, count in enumerate(self.counts)]


class PendingDrafts:
    """The tokens that zero-step rounds verified and the draft has not seen yet.

    Every such round yields one token a request, so who owes how much is known without looking at a device. A key
    names a request's place in the pools for as long as it holds it. Held are the tokens of the rounds since the last
    :meth:`settle`, one after the other; that they stay few is the caller's promise to settle in time.
    """

    def __init__(self) -> None:
        self._places: dict[Hashable, list[int]] = {}
        self._left_out: dict[Hashable, int] = {}
        self._tokens = 0
        self._latest = 0  # tokens before those of the latest round
        self._rounds = 0

    @property
    def rounds(self) -> int:
        """Rounds held."""
        return self._rounds

    def hold(self, keys: Sequence[Hashable]) -> None:
        """Add a round that verified one token for each of *keys*, in this order."""
        self._latest = self._tokens
        for place, key in enumerate(keys, self._tokens):
            self._places.setdefault(key, []).append(place)
        self._tokens += len(keys)
        self._rounds += 1

    def owed(self, key: Hashable) -> int:
        """Return how many of the request's latest tokens the draft has not seen."""
        return len(self._places.get(key, ())) or self._left_out.get(key, 0)

    def catch_up(self, keys: Sequence[Hashable]) -> CatchUp | None:
        """Return what the batch of *keys* owes, None when that is nothing."""
        owing = [(row, self._places[key]) for row, key in enumerate(keys) if key in self._places]
        if not owing:
            return None
        return CatchUp(
            rows=tuple(row for row, _ in owing),
            counts=tuple(len(places) for _, places in owing),
            sources=tuple(tuple(places) for _, places in owing),
        )

    def all_in_latest(self, keys: Sequence[Hashable]) -> bool:
        """Whether the latest round held a token of each of *keys*."""
        return all(self._places.get(key, (-1,))[-1] >= self._latest for key in keys)

    def keep_latest(self, keys: Sequence[Hashable]) -> None:
        """Let go of all but the latest round, which held a token of each of *keys*; their others were written."""
        kept = {key: [self._places[key][-1] - self._latest] for key in keys}
        tokens = self._tokens - self._latest
        self.settle(keys)
        self._places, self._tokens, self._rounds = kept, tokens, 1

    def settle(self, keys: Sequence[Hashable] = ()) -> None:
        """Let go of all that is held: the requests of *keys* were extended, and the others are leaving.

        A scheduler that works ahead leaves a request out of the next round as soon as it knows that the round before
        is its last, and lets it go only after that next round began. Until the next call it is told what it owes.
        """
        extended = set(keys)
        self._left_out = {key: len(places) for key, places in self._places.items() if key not in extended}
        self._places = {}
        self._tokens = self._latest = self._rounds = 0
