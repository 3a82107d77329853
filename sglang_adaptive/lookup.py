"""A lookup: drafts copied from an earlier place in a request's own text, its prompt and output, or from other texts.

This is the definition, which kernels and recordings follow.

Token p is the last known token. The lookup finds the earlier token q for which the tokens up to q match those up to p
the furthest back, over at least SHORTEST tokens and compared over LONGEST; of several such q, it takes the latest. The
drafts are the DRAFTS tokens after q. If they reach p, they start again after q, as in text with a period of p - q
tokens. So a round accepts as many drafts as the texts after q and after p have in common, at most DRAFTS, and yields
one more token.

Other texts may be searched as well, its sources. There q may be any token but the last; of equal matches the own text
counts, then the first source. Drafts end with their source.

A draft is correct exactly if it equals the following text, so the finished text of any model gives the acceptance of
lookups without error.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sglang_adaptive.policy.errors import ConfigError, shown
from sglang_adaptive.policy.options import PolicyOptions

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


def texts_in(path: str) -> list[str | list[int]]:
    """Return the texts of a file, one a line: a JSON string, or a JSON list of token ids.

    Raises:
        ConfigError: With one line that names file, line and what is accepted.
    """
    expected, found = "a JSON string or list of token ids a line", list[str | list[int]]()
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(path, None, str(error), f"a file with {expected}") from None
    for number, line in enumerate(lines, 1):
        try:
            text = json.loads(line)
        except ValueError:
            text = None
        tokens = isinstance(text, list) and all(type(token) is int and token >= 0 for token in text)
        if not (text and (tokens or isinstance(text, str))):
            raise ConfigError(path, f"line {number}", f"got {shown(line)}", expected)
        found.append(text)
    return found


def require_texts(options: PolicyOptions, *, as_text: bool = True) -> None:
    """Raise ConfigError unless the texts of ``lookup_texts`` take at most half of the memory.

    Without *as_text* they must be tokens.
    """
    path, megabytes = options.lookup_texts, options.lookup_memory_mb
    if not (options.lookup and path):
        return
    texts, most = texts_in(path), megabytes << 17  # half of the tokens, which are 4 bytes each
    if not as_text and any(isinstance(text, str) for text in texts):
        raise ConfigError(path, None, "has text", "lists of token ids beside --skip-tokenizer-init")
    size = len(texts) + sum(len(text.encode()) if isinstance(text, str) else len(text) for text in texts)
    if size > most:
        expected = f"{most:,} at most with a lookup_memory_mb of {megabytes}"
        raise ConfigError(path, None, f"has {size:,} bytes of text or tokens", expected)
