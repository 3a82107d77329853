"""Which finished texts are kept, where they lie in a ring of tokens, and which of them a request searches.

Samples of one prompt, and answers to prompts that begin alike, are often alike as well. Texts are shared only between
requests with the same key, that of SGLang's prefix cache. A *mark* is a hash of a key and the beginning of a prompt.
All is done in the order in which requests finish, so all tensor-parallel ranks are alike.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from sglang_adaptive.policy.config import texts_in
from sglang_adaptive.policy.observation import LONGEST

Ints = npt.NDArray[np.int64]
Range = tuple[int, int]
"""First place, and the first after it."""

SEARCHED = {"cuda": 1 << 18, "cpu": 1 << 16}
"""Tokens of other texts that a request searches at most, by device."""
SOURCES = 32
"""Ranges that they lie in at most."""
ALIKE = 24
"""Ranges of texts that begin alike, at most; the others are of the file and of the newest texts."""
SIBLINGS = 8
"""Running requests with the same prompt that a request searches at most, before these ranges."""
PIECE = 64
"""Shared beginnings are found in steps of so many tokens."""
END = -3
"""Follows each text; no token equals it."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A text in the ring, with the marks of its beginnings and its prompt."""

    marks: Sequence[int]
    begin: int
    end: int
    """After its END."""


class Memory:
    """Finished texts in a ring of *capacity* tokens."""

    def __init__(self, capacity: int, longest: int, searched: int, file: Sequence[Ints] = ()) -> None:
        """*longest* is a context's length, *searched* as SEARCHED; texts of *file* stay and are for all keys."""
        self._capacity, self._longest, self._searched = capacity, longest, searched
        self._file = [np.append(text, END) for text in file]
        self._first = sum(map(len, self._file))
        """The ring's first place; the file is before it."""
        self.version = 0
        """Changes with the texts in the ring."""
        self.forget()

    def forget(self) -> None:
        """Drop all texts but the file's."""
        self._unwritten: deque[tuple[int, Ints]] = deque()
        """Places of the ring and what goes there: only a tracked round may write."""
        self._waiting, self._head = 0, self._first
        """Tokens that are not written, and the place after the latest text in the ring."""
        self._kept: deque[_Kept] = deque()
        """Oldest first, which is the order in which the ring overwrites them."""
        self._alike: defaultdict[int, deque[_Kept]] = defaultdict(deque)
        """Texts by mark of a beginning, oldest first."""
        self._runs: deque[tuple[Hashable, int, int]] = deque()
        """Keys and ranges of texts in a row with one key, oldest first."""
        self.version += 1

    def keep(self, key: Hashable, tokens: Ints, prompt: int) -> None:
        """Keep a finished text, of which the first *prompt* tokens are the prompt."""
        marks = _pieces(key, tokens)
        known = next((at for at in range(len(marks), 0, -1) if marks[at - 1] in self._alike), 0)
        # What an earlier text begins with is there already; what matches may begin there.
        begin = max(0, known * PIECE - LONGEST, len(tokens) - min(self._longest, self._capacity - self._first - 1))
        new = np.append(tokens[begin:], END)
        self._unwritten.append((self._place(key, [*marks, _whole(key, tokens[:prompt])], len(new)), new))
        self.version += 1
        self._waiting += len(new)
        while self._waiting > self._capacity - self._first:  # later texts are in these places
            self._waiting -= len(self._unwritten.popleft()[1])

    def arrivals(self) -> Iterator[tuple[int, Ints]]:
        """Yield each place in the ring to write, and the tokens to write there."""
        if self._file:
            yield 0, np.concatenate(self._file)
            self._file = []
        while self._unwritten:
            yield self._unwritten.popleft()
        self._waiting = 0

    def has(self, mark: int) -> bool:
        """Whether a text in the ring has *mark*."""
        return mark in self._alike

    def sources(self, key: Hashable, marks: Sequence[int], share: int = 1) -> list[Range]:
        """Return the ranges that a request searches, best first; *marks* are those of its prompt.

        They have one *share*-th of the tokens that one request alone may search.
        """
        found: list[Range] = []
        left, seen = self._searched // share, set[int]()
        for mark in reversed(marks):
            for one in islice(reversed(self._alike.get(mark, ())), ALIKE):
                size = one.end - one.begin
                if one.begin in seen or size > left or len(found) == ALIKE:
                    continue
                seen.add(one.begin)
                left -= size
                if found and found[-1][0] == one.end:
                    found[-1] = one.begin, found[-1][1]
                else:
                    found.append((one.begin, one.end))
        others = [(0, self._first), *((begin, end) for whose, begin, end in reversed(self._runs) if whose == key)]
        for begin, end in others[: SOURCES - len(found)]:
            begin = max(begin, end - left)
            left -= end - begin
            if end > begin:
                found.append((begin, end))
        return found

    def _place(self, key: Hashable, marks: Sequence[int], size: int) -> int:
        """Return where a text of *size* tokens goes, after making room."""
        begin = self._head
        if begin + size > self._capacity:
            self._drop(begin, self._capacity)
            begin = self._first
        self._head = begin + size
        self._drop(begin, self._head)
        kept = _Kept(marks, begin, self._head)
        self._kept.append(kept)
        for mark in marks:
            self._alike[mark].append(kept)
        whose, run, end = self._runs[-1] if self._runs else (None, 0, -1)
        if end == begin and whose == key:
            self._runs[-1] = key, run, self._head
        else:
            self._runs.append((key, begin, self._head))
        return begin

    def _drop(self, begin: int, before: int) -> None:
        """Drop the oldest texts, while they begin between *begin* and *before*."""
        while self._kept and begin <= self._kept[0].begin < before:
            old = self._kept.popleft()
            for mark in old.marks:
                self._alike[mark].popleft()
                if not self._alike[mark]:
                    del self._alike[mark]
            key, _, end = self._runs.popleft()
            if end > old.end:
                self._runs.appendleft((key, old.end, end))


def marks_of(key: Hashable, prompt: Ints) -> list[int]:
    """Return the marks of a prompt's beginnings, PIECE tokens longer each, and last the mark of all of it."""
    return [*_pieces(key, prompt), _whole(key, prompt)]


def _pieces(key: Hashable, tokens: Ints) -> list[int]:
    mark, found = hash(key), []
    for end in range(PIECE, len(tokens) + 1, PIECE):
        mark = hash((mark, tokens[end - PIECE : end].tobytes()))
        found.append(mark)
    return found


def _whole(key: Hashable, prompt: Ints) -> int:
    return hash((key, prompt.tobytes()))


def key_of(req: Any) -> Hashable:
    """Return what SGLang's prefix cache tells requests apart by: LoRA adapter, extra key and salt."""
    return req.extra_key, req.cache_salt


def tokenized(path: str, tokenizer: Any) -> list[Ints]:
    """Return the texts of the file *path* as tokens. Raises ConfigError, as `texts_in` does."""
    tokens = [
        tokenizer.encode(text, add_special_tokens=False) if isinstance(text, str) else text for text in texts_in(path)
    ]
    return [np.array(text, dtype=np.int64) for text in tokens]
