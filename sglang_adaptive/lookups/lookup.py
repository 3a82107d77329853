"""A lookup: drafts copied from an earlier place of a request's own text, its prompt and what it has written.

At token p, the last one that is known, the lookup is the earlier token q whose latest tokens agree with those at p the
furthest back, over at least SHORTEST tokens and compared over LONGEST; of several such q the latest. The drafts are the
DRAFTS tokens behind q. Where they run into p they begin again behind q, as in text with a period of p - q tokens. So a
round accepts as many as the texts behind q and behind p have in common, at most DRAFTS, and yields one token more. A
draft that is looked up is right exactly when it is the text that follows, so the finished text of any model gives its
acceptance without error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

SHORTEST, LONGEST = 2, 64
"""Tokens that have to agree, and that are compared."""
DRAFTS = 32
"""Drafts of a round."""
MOST_TOKENS = 1 << 20
"""Tokens of a text at most: a position takes 20 bits of a sorting key."""

_BITS = 20
_SORTED = 4
"""Agreement up to which all tokens are sorted; the few that agree further are compared one round at a time."""
_AT_ONCE = 512
"""Candidates that are compared in one go; bounds memory."""


class Round(NamedTuple):
    """A round of drafts that were looked up."""

    match: int
    """Tokens that agree before the drafts, SHORTEST to LONGEST; 0 where nothing was found and nothing is drafted."""
    tokens: int
    """Output tokens: the accepted drafts and the target's own, at most what is left of the text."""


class Text:
    """The finished text of a request, with an index of where the tokens of its output stood before.

    Indexing takes a few sorts of all tokens, in which numpy releases the interpreter's lock.
    """

    def __init__(self, tokens: npt.ArrayLike, prompt: int) -> None:
        """*tokens* are [N] token ids, at most MOST_TOKENS, of which the first *prompt* are the prompt."""
        text = np.ascontiguousarray(tokens, np.int64)
        assert len(text) <= MOST_TOKENS, "a position would not fit its bits"
        if len(text) and not 0 <= int(text.min()) <= int(text.max()) < MOST_TOKENS:
            text = np.unique(text, return_inverse=True)[1].astype(np.int64)  # images have ids beyond a vocabulary
        self._text = text
        self._ids = text.data  # a memoryview, out of which single tokens are read faster
        self._prompt = prompt
        behind_nothing = np.concatenate((np.full(LONGEST, -1, np.int32), text.astype(np.int32)))
        self._windows = np.lib.stride_tricks.sliding_window_view(behind_nothing, LONGEST)[1:]
        """[N, LONGEST]: each token behind those before it; -1 before the text."""
        self._index()

    def __len__(self) -> int:
        return len(self._text)

    def rounds(self) -> Iterator[Round]:
        """Yield the rounds that would have written the output behind its first token, which the prefill yields."""
        place = self._prompt
        while place < len(self._text) - 1:
            found = self.at(place)
            yield found
            place += found.tokens

    def at(self, place: int) -> Round:
        """Return the round that begins with the output token at *place* as the last one known."""
        left = len(self._text) - 1 - place
        match, source = self._match(place)
        if not match:
            return Round(0, min(1, left))
        ids, most, accepted = self._ids, min(DRAFTS, left), 0
        while accepted < most and ids[source + 1 + accepted] == ids[place + 1 + accepted]:
            accepted += 1
        return Round(match, min(accepted + 1, left))

    def _match(self, place: int) -> tuple[int, int]:
        """Return how many tokens before and at *place* stood elsewhere before, and the last of them there."""
        at = place - self._prompt
        match, source = self._length[at], self._source[at]
        if match < _SORTED:
            return match, source
        begin, end = self._begin[at], self._end[at]
        here, best = self._windows[place], 0
        while end > begin and best < LONGEST:
            some = self._candidates[max(begin, end - _AT_ONCE) : end]
            end -= len(some)
            differ = (self._windows[some] != here)[:, ::-1]
            agree = np.where(differ.any(axis=1), differ.argmax(axis=1), LONGEST)
            latest = len(some) - 1 - int(agree[::-1].argmax())
            if agree[latest] > best:
                best, source = int(agree[latest]), int(some[latest])
        return best, source

    def _index(self) -> None:
        """Find for each output token the latest earlier one after the same SHORTEST to _SORTED tokens.

        Tokens are sorted by what stands at and before them, a token more each time, and then by position. Those that
        agree lie side by side; groups without an output token, or with a single one, are left out from then on.
        """
        text, prompt = self._text, self._prompt
        outputs = max(0, len(text) - prompt)
        length, source, begin, end = (np.zeros(outputs, np.int64) for _ in range(4))
        place, group = np.arange(len(text), dtype=np.int64), text
        for size in range(SHORTEST, _SORTED + 1):
            kept = place >= size - 1
            place, group = place[kept], group[kept]
            # The first time the group is the token itself.
            key = group << 2 * _BITS | text[place - (size - 1)] << _BITS | place
            key.sort()
            place = key & MOST_TOKENS - 1
            alike = np.zeros(len(key) + 1, bool)
            np.equal(key[1:] >> _BITS, key[:-1] >> _BITS, out=alike[1:-1])
            later = np.flatnonzero(alike[:-1])
            later = later[place[later] >= prompt]
            length[place[later] - prompt] = size
            source[place[later] - prompt] = place[later - 1]
            heads = np.flatnonzero(~alike[:-1])
            counts = np.diff(np.append(heads, len(key)))
            kept = (counts > 1) & (place[heads + counts - 1] >= prompt)
            heads, counts = heads[kept], counts[kept]
            group = np.repeat(np.arange(len(heads)), counts)
            begins = np.cumsum(counts) - counts
            place = place[np.arange(len(group)) + np.repeat(heads - begins, counts)]
        mine = np.flatnonzero(place >= prompt)
        begin[place[mine] - prompt] = begins[group[mine]]
        end[place[mine] - prompt] = mine
        self._candidates = place
        """Tokens whose _SORTED latest ones stand in the text more than once, grouped by these, then by position."""
        self._length, self._source = length.data, source.data
        self._begin, self._end = begin.data, end.data
