"""What lookups would have brought to a finished text, by the definition in `sglang_adaptive.policy.observation.Lookup`.

A draft is correct exactly if it equals the following text, so the finished text of any model gives the acceptance of
lookups without error.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sglang_adaptive.policy.observation import DRAFTS, LONGEST, SHORTEST


class Round(NamedTuple):
    """A lookup round."""

    match: int
    """Matching tokens before the drafts, SHORTEST to LONGEST; 0 if nothing was found and nothing is drafted."""
    tokens: int
    """Output tokens: the accepted drafts and the target's own, at most the rest of the text."""
    remembered: bool = False
    """Whether the drafts are from another text."""


class Text:
    """The finished text of a request, with an index of where each pair of tokens ends."""

    def __init__(self, tokens: Iterable[int], prompt: int, sources: Sequence[Text] = ()) -> None:
        """*tokens* are [N] token ids, of which the first *prompt* are the prompt; *sources* are searched as well."""
        self._ids = list(map(int, tokens))
        self._prompt, self._sources = prompt, sources
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
        (match, end), source = self.longest(ids, place, place), self
        for other in self._sources:
            found = other.longest(ids, place, len(other._ids) - 1)
            if found[0] > match:
                (match, end), source = found, other
        if not match:
            return Round(0, min(1, left))
        most, accepted = min(DRAFTS, left, len(source._ids) - 1 - end), 0
        while accepted < most and source._ids[end + 1 + accepted] == ids[place + 1 + accepted]:
            accepted += 1
        return Round(match, min(accepted + 1, left), source is not self)

    def longest(self, ids: Sequence[int], place: int, before: int) -> tuple[int, int]:
        """Return the longest match of the tokens of *ids* up to *place*, and where it ends here, before *before*."""
        own, best, source = self._ids, 0, 0
        ends = self._ends.get((ids[place - 1], ids[place]), []) if place else []
        for end in reversed(ends[: bisect_left(ends, before)]):  # of equal matches the latest counts
            match = SHORTEST
            while match < min(LONGEST, end + 1, place + 1) and own[end - match] == ids[place - match]:
                match += 1
            if match > best:
                best, source = match, end
            if best == LONGEST:
                break
        return best, source
