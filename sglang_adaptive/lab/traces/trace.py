"""What a trace holds, and what can be read off it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sglang_adaptive.lookups.lookup import Text
from sglang_adaptive.policy.errors import printable, shown


class TraceError(ValueError):
    """A trace that cannot be used: which file, which key, what was found, what is accepted."""

    def __init__(self, file: str, key: str | None, value: object, expected: str) -> None:
        self.file = file
        self.key = key
        self.value = value
        self.expected = expected
        place = printable(file) if key is None else f"{printable(file)}: {printable(key)}"
        super().__init__(f"{place}: {shown(value)}; expected {expected}")

    def __reduce__(self) -> tuple[type[TraceError], tuple[str, str | None, object, str]]:
        # Exception pickles its message only, and a replay may run in other processes.
        return type(self), (self.file, self.key, self.value, self.expected)


CHAIN = 7
"""Drafts in a recorded chain of EAGLE-3."""

LONGEST_CHAIN = 63
"""Most drafts of a chain or block in a trace."""

LEVELS = 32
"""Steps of the quantised confidence."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Acceptance at every position of the outputs of *R* requests, *N* positions in all.

    Position t of a request is a round that starts with output token t as the last one known. The round's chain of C
    drafts proposes tokens t + 1 to t + C; C is 7, or the drafts of a block. A round of s steps accepts
    ``k = min(L(t), s)`` of them, and the next one starts at t + k + 1. The first round starts at 0: the pass over the
    prompt yields output token 0. A request is done at its length or beyond. The draft proposes its most likely token;
    above temperature 0 the text is one sample.
    """

    target: str
    """Model that wrote the outputs."""

    draft: str
    """Draft that proposed."""

    prompts: str
    """Where the prompts come from."""

    temperature: float
    """Of the target's sampling; 0 is greedy."""

    hardware: str
    """What the recorder ran on."""

    command: str
    """Command that records this trace."""

    date: str
    """Day of the recording, YYYY-MM-DD."""

    category: tuple[str, ...]
    """R kinds of text, one a request."""

    length: npt.NDArray[np.int32]
    """[R] positions of each request, one or more."""

    loop_start: npt.NDArray[np.int32]
    """[R] position where the first exact repetition starts; the request's length where there is none."""

    accepted: npt.NDArray[np.uint8]
    """[N] drafts of the chain that are accepted, 0 to C, request after request."""

    confidence: npt.NDArray[np.uint8]
    """[N, C] probability p that the draft gives each token it proposes, as floor(32 p), at most 31."""

    match: npt.NDArray[np.uint8] | None = None
    """[N] tokens before the drafts that agree with an earlier place of the request's text; ``lookups`` says which.

    None, as ``looked_up``, in a trace that was recorded without its tokens."""

    looked_up: npt.NDArray[np.uint8] | None = None
    """[N] drafts that are right of those that were looked up there, 0 to 32."""

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """[R] row of each request's first position in ``accepted`` and ``confidence``."""
        lengths = self.length.astype(np.int64)
        return np.cumsum(lengths) - lengths

    def requests(self) -> Iterator[tuple[str, npt.NDArray[np.uint8], npt.NDArray[np.uint8]]]:
        """Yield category, accepted drafts [n] and confidence [n, C] of each request; the arrays are views."""
        for category, start, length in zip(self.category, self.starts, self.length, strict=True):
            rows = slice(int(start), int(start) + int(length))
            yield category, self.accepted[rows], self.confidence[rows]

    def probabilities(self) -> npt.NDArray[np.float32]:
        """[N, C] confidence as probabilities: the middle of each level."""
        return (self.confidence.astype(np.float32) + np.float32(0.5)) / np.float32(LEVELS)

    def select(self, rows: npt.ArrayLike) -> Trace:
        """Return the trace of some requests, by index or by a mask over them, in the order given."""
        chosen = np.arange(len(self.category))[np.asarray(rows)]
        return self._cut(chosen, self.length[chosen])

    def without_repetitions(self) -> Trace:
        """Return the trace with each request cut where its first exact repetition starts."""
        return self._cut(np.arange(len(self.category)), self.loop_start)

    def _cut(self, chosen: npt.NDArray[np.int64], length: npt.NDArray[np.int32]) -> Trace:
        starts = self.starts[chosen]
        rows = [np.arange(start, start + kept) for start, kept in zip(starts, length, strict=True)]
        at = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        return replace(
            self,
            category=tuple(self.category[i] for i in chosen),
            length=length.astype(np.int32),
            loop_start=np.minimum(self.loop_start[chosen], length).astype(np.int32),
            accepted=self.accepted[at],
            confidence=self.confidence[at],
            match=None if self.match is None else self.match[at],
            looked_up=None if self.looked_up is None else self.looked_up[at],
        )


def quantised(probability: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """Return the level, 0 to 31, of each probability in 0 to 1."""
    return np.minimum(np.asarray(probability, np.float64) * LEVELS, LEVELS - 1).astype(np.uint8)


def lookups(ids: Sequence[int], prompt: int, positions: int) -> npt.NDArray[np.uint8]:
    """Return [positions, 2]: ``match`` and ``looked_up`` of the text *ids* [T], whose output begins at *prompt*."""
    text = Text(ids, prompt)
    found = [text.at(prompt + at) for at in range(positions)]
    return np.array([(one.match, one.tokens - 1 if one.match else 0) for one in found], np.uint8).reshape(-1, 2)
