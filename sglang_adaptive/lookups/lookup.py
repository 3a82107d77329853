"""A lookup: drafts copied from an earlier place in a request's own text, its prompt and output.

Token p is the last known token. The lookup finds the earlier token q for which the tokens up to q match those up to p
the furthest back, over at least SHORTEST tokens and compared over LONGEST; of several such q, it takes the latest. The
drafts are the DRAFTS tokens after q. If they reach p, they start again after q, as in text with a period of p - q
tokens. So a round accepts as many drafts as the texts after q and after p have in common, at most DRAFTS, and yields
one more token. A draft is correct exactly if it equals the following text, so the finished text of any model gives the
acceptance of lookups without error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

SHORTEST, LONGEST = 2, 64
"""Tokens that must match, and the most that are compared."""
DRAFTS = 32
"""Drafts per round."""
MOST_TOKENS = 1 << 20
"""Most tokens of a text: a position takes 20 bits of a sorting key."""

_BITS = 20
_SORTED = 4
"""Match up to which all tokens are sorted; the few longer matches are compared one round at a time."""
_AT_ONCE = 512
"""Candidates that are compared at once; limits memory."""


class Round(NamedTuple):
    """A lookup round."""

    match: int
    """Matching tokens before the drafts, SHORTEST to LONGEST; 0 if nothing was found and nothing is drafted."""
    tokens: int
    """Output tokens: the accepted drafts and the target's own, at most the rest of the text."""


class Text:
    """The finished text of a request, with an index of earlier occurrences of its output tokens.

    Indexing takes a few sorts of all tokens, during which numpy releases the GIL.
    """

    def __init__(self, tokens: npt.ArrayLike, prompt: int) -> None:
        """*tokens* are [N] token ids, at most MOST_TOKENS, of which the first *prompt* are the prompt."""
        text = np.ascontiguousarray(tokens, np.int64)
        assert len(text) <= MOST_TOKENS, "a position would not fit its bits"
        if len(text) and not 0 <= int(text.min()) <= int(text.max()) < MOST_TOKENS:
            text = np.unique(text, return_inverse=True)[1].astype(np.int64)  # images have ids beyond the vocabulary
        self._text = text
        self._ids = text.data  # a memoryview reads single tokens faster
        self._prompt = prompt
        behind_nothing = np.concatenate((np.full(LONGEST, -1, np.int32), text.astype(np.int32)))
        self._windows = np.lib.stride_tricks.sliding_window_view(behind_nothing, LONGEST)[1:]
        """[N, LONGEST]: the window that ends at each token; -1 before the text."""
        self._index()

    def __len__(self) -> int:
        return len(self._text)

    def rounds(self) -> Iterator[Round]:
        """Yield the rounds that would have produced the output after its first token, which the prefill yields."""
        place = self._prompt
        while place < len(self._text) - 1:
            found = self.at(place)
            yield found
            place += found.tokens

    def at(self, place: int) -> Round:
        """Return the round that begins with the output token at *place* as the last known one."""
        left = len(self._text) - 1 - place
        match, source = self._match(place)
        if not match:
            return Round(0, min(1, left))
        ids, most, accepted = self._ids, min(DRAFTS, left), 0
        while accepted < most and ids[source + 1 + accepted] == ids[place + 1 + accepted]:
            accepted += 1
        return Round(match, min(accepted + 1, left))

    def _match(self, place: int) -> tuple[int, int]:
        """Return the length of the match that ends at *place*, and where its earlier occurrence ends."""
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
        """Find, for each output token, the latest earlier one at the end of the same SHORTEST to _SORTED tokens.

        Each pass sorts tokens by the tokens up to them, one more per pass, and then by position, so matching ones are
        adjacent. Groups without an output token, or with a single token, are dropped for the later passes.
        """
        text, prompt = self._text, self._prompt
        outputs = max(0, len(text) - prompt)
        length, source, begin, end = (np.zeros(outputs, np.int64) for _ in range(4))
        place, group = np.arange(len(text), dtype=np.int64), text
        for size in range(SHORTEST, _SORTED + 1):
            kept = place >= size - 1
            place, group = place[kept], group[kept]
            # In the first pass the group is the token itself.
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
        """Ends of _SORTED tokens that occur in the text more than once, grouped by these tokens, then by position."""
        self._length, self._source = length.data, source.data
        self._begin, self._end = begin.data, end.data
