"""A lookup: drafts copied from an earlier place in a request's own text, its prompt and output.

This is the definition, which kernels and recordings follow.

Token p is the last known token. The lookup finds the earlier token q for which the tokens up to q match those up to p
the furthest back, over at least SHORTEST tokens and compared over LONGEST; of several such q, it takes the latest. The
drafts are the DRAFTS tokens after q. If they reach p, they start again after q, as in text with a period of p - q
tokens. So a round accepts as many drafts as the texts after q and after p have in common, at most DRAFTS, and yields
one more token. A draft is correct exactly if it equals the following text, so the finished text of any model gives the
acceptance of lookups without error.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

SHORTEST, LONGEST = 2, 64
"""Tokens that must match, and the most that are compared."""
DRAFTS = 32
"""Drafts per round."""


class Round(NamedTuple):
    """A lookup round."""

    match: int
    """Matching tokens before the drafts, SHORTEST to LONGEST; 0 if nothing was found and nothing is drafted."""
    tokens: int
    """Output tokens: the accepted drafts and the target's own, at most the rest of the text."""


class Text:
    """The finished text of a request, with an index of where each pair of tokens ends."""

    def __init__(self, tokens: Iterable[int], prompt: int) -> None:
        """*tokens* are [N] token ids, of which the first *prompt* are the prompt."""
        self._ids = list(map(int, tokens))
        self._prompt = prompt
        self._ends: dict[tuple[int, int], list[int]] = defaultdict(list)
        for place in range(1, len(self._ids)):
            self._ends[self._ids[place - 1], self._ids[place]].append(place)

    def rounds(self) -> Iterator[Round]:
        """Yield the rounds that would have produced the output after its first token, which the prefill yields."""
        place = self._prompt
        while place < len(self._ids) - 1:
            found = self.at(place)
            yield found
            place += found.tokens

    def at(self, place: int) -> Round:
        """Return the round that begins with the token at *place* as the last known one."""
        ids, left = self._ids, len(self._ids) - 1 - place
        match, source = self._match(place)
        if not match:
            return Round(0, min(1, left))
        most, accepted = min(DRAFTS, left), 0
        while accepted < most and ids[source + 1 + accepted] == ids[place + 1 + accepted]:
            accepted += 1
        return Round(match, min(accepted + 1, left))

    def _match(self, place: int) -> tuple[int, int]:
        """Return the length of the match that ends at *place*, and where its earlier occurrence ends."""
        ids, best, source = self._ids, 0, 0
        ends = self._ends[ids[place - 1], ids[place]] if place else []
        for end in reversed(ends[: bisect_left(ends, place)]):  # of equal matches the latest counts
            match = SHORTEST
            while match < min(LONGEST, end + 1) and ids[end - match] == ids[place - match]:
                match += 1
            if match > best:
                best, source = match, end
            if best == LONGEST:
                break
        return best, source
