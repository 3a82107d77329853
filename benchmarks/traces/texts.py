"""Recorded requests with their tokens, which traces leave out, for a server to replay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

Request = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""Prompt, output, and the number of the draft's tokens accepted after each last known output token."""


class Texts(NamedTuple):
    """Recorded requests, one after another in each array."""

    tokens: np.ndarray
    """Prompt, then output."""
    prompt: np.ndarray
    output: np.ndarray
    """Lengths by request."""
    accepted: np.ndarray
    """Number of accepted drafts by last known output token, at most CHAIN."""

    def of(self, request: int) -> tuple[list[int], list[int], list[int]]:
        """Return the prompt, the output and the acceptance of a request."""
        begin = int((self.prompt + self.output)[:request].sum())
        first = int(self.output[:request].sum())
        middle, end = begin + int(self.prompt[request]), begin + int(self.prompt[request] + self.output[request])
        accepted = self.accepted[first : first + int(self.output[request])]
        return self.tokens[begin:middle].tolist(), self.tokens[middle:end].tolist(), accepted.tolist()


def load(path: Path) -> Texts:
    """Read recorded requests."""
    with np.load(path) as found:
        return Texts(**{name: found[name] for name in Texts._fields})


def save(path: Path, requests: Iterable[Request]) -> None:
    """Write *requests*."""
    kept = list(requests)
    np.savez_compressed(
        path,
        tokens=np.array([token for prompt, output, _ in kept for token in (*prompt, *output)], np.int32),
        prompt=np.array([len(prompt) for prompt, _, _ in kept]),
        output=np.array([len(output) for _, output, _ in kept]),
        accepted=np.array([one for *_, right in kept for one in right], np.uint8),
    )
