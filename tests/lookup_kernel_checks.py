"""The kernels that look drafts up, compared with the definition; ``TRITON_INTERPRET=1`` needs no device.

They keep a table of token ids, and first append the tokens that a round accepted.
"""

from __future__ import annotations

import os
from random import Random

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.traces.lookup import Text
from sglang_adaptive.policy.observation import DRAFTS
from sglang_adaptive.sglang_plugin.stages.lookups import kernel
from tests import checks

SOURCES = 4
"""Most sources of a request here."""
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class Lookup:
    """Buffers for one batch size, and both launches."""

    def __init__(self, requests: int, slots: int, device: str, block: int, parts: int) -> None:
        def made(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self.drafts, self.matches, self.ends = made(slots, DRAFTS), made(slots, 2), made(slots)
        self.told = made(requests, kernel.COLUMNS)
        self.sources = made(requests, 1 + SOURCES, 2)
        self._best, self._done = made(requests).to(torch.int64), made(requests)
        self._block, self._parts = block, parts

    def append(
        self, table: torch.Tensor, rows: torch.Tensor, known: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor
    ) -> None:
        """Append *counts* [b] of *tokens* [b * width] to the texts *rows* of *table*, after *known* [b] + 1 tokens."""
        kernel.append(table, self.ends, rows, known, tokens, counts, self.drafts, self.matches, self.told)

    def look_up(self, table: torch.Tensor, rows: torch.Tensor) -> None:
        """Write ``drafts`` and ``matches`` of the texts *rows*."""
        kernel.look_up(
            table, self.ends, rows, self.drafts, self.matches, self.told, self._best, self._done, self.sources,
            self._block, self._parts,
        )  # fmt: skip


def expected(text: list[int], others: list[list[int]]) -> tuple[int, bool, list[int]]:
    """Return match, whether it is of one of *others*, and drafts after *text*, from the definition."""
    last, copied = len(text) - 1, list[int]()
    (match, end), remembered = Text(text, 0).longest(text, last, last), False
    if match:
        copied = [text[end + 1 + place % (last - end)] for place in range(DRAFTS)]
    for other in others:
        found, end = Text(other, 0).longest(text, last, len(other) - 1)
        if found > match:
            match, remembered, copied = found, True, other[end + 1 : end + 1 + DRAFTS]
    return match, remembered, [*(max(0, token) for token in copied), *[0] * (DRAFTS - len(copied))]


def written(kind: str, length: int, seed: int) -> npt.NDArray[np.int32]:
    """Return a text: of rare words, of few words, one that copies stretches of itself, or one of a single token."""
    draw = np.random.default_rng(seed)
    if kind == "one token":
        return np.full(length, 7, np.int32)
    words = {"rare words": 128_000, "few words": 50, "copies": 128_000}[kind]
    # Half of all tokens are among the sixteen likeliest ones, about as in real text.
    text = np.minimum(draw.zipf(1.3, length), words).astype(np.int32)
    if kind == "copies":
        place = length // 10 + 2
        while place < length:
            size = min(int(draw.integers(5, 400)), length - place, place)
            begin = int(draw.integers(0, place - size + 1))
            text[place : place + size] = text[begin : begin + size]
            place += size + int(draw.integers(1, 30))
    return text


def kernels_look_up_what_the_definition_does() -> None:
    compared = check(checks.device())
    assert compared == 28 if INTERPRETED else compared > 50


def check(device: str) -> int:
    """Compare launches with the definition; return the number of lookups."""
    random, compared, from_others = Random(1), 0, 0
    for seed, kind in enumerate(["rare words", "few words", "copies", "one token"] * (1 if INTERPRETED else 3)):
        requests, most = random.choice([1, 3, 5]), 40 if INTERPRETED and kind == "one token" else 700
        table = torch.full((8, 800), -9, dtype=torch.int32, device=device)  # content past a text must not matter
        rows = random.sample(range(8), requests)
        before = [random.randrange(1, most) for _ in rows]
        rounds = [[random.randrange(1, 9) for _ in rows] for _ in range(2)]
        texts = [written(kind, length + sum(more), 100 * seed + at)
                 for at, (length, *more) in enumerate(zip(before, *rounds, strict=True))]  # fmt: skip
        for row, length, text in zip(rows, before, texts, strict=True):
            table[row, :length] = torch.from_numpy(text[:length])
        spare = [row for row in range(8) if row not in rows]
        others = {row: pieces(texts[at], table, spare, Random(at + 10 * seed)) for at, row in enumerate(rows)}
        lookup = Lookup(requests, 8, device, *((64, 3), (128, 1), (256, 7))[seed % 3])
        places, known, drafts = as_ints(rows, device), before, [[0] * DRAFTS for _ in rows]
        matches = [(0, False)] * requests
        for row, ranges in others.items():
            at, sibling = rows.index(row), rows[rows.index(row) - 1]
            if seed % 2 and sibling != row and len(ranges) < SOURCES:
                ranges.append((sibling * 800, -1 - sibling))  # a running text
            lookup.sources[at, 0, 0] = len(ranges)
            lookup.sources[at, 1 : 1 + len(ranges)] = torch.tensor(ranges, dtype=torch.int32).view(-1, 2)
        for counts in rounds:
            tokens = torch.full((requests, 16), -5, dtype=torch.int32, device=device)
            for at, (text, length, count) in enumerate(zip(texts, known, counts, strict=True)):
                tokens[at, :count] = torch.from_numpy(text[length : length + count])
            lookup.append(table, places, as_ints(known, device) - 1, tokens.flatten(), as_ints(counts, device))
            lookup.look_up(table, places)
            for at, (row, text) in enumerate(zip(rows, texts, strict=True)):
                new, end = text[known[at] : known[at] + counts[at]].tolist(), known[at] + counts[at]
                agreed = next((i for i, token in enumerate(new) if token != drafts[at][i]), len(new))
                ended = [int(lookup.ends[-1 - after]) + first if after < 0 else after for first, after in others[row]]
                ranges = zip(others[row], ended, strict=True)
                sources = [table.flatten()[first:after].tolist() for (first, _), after in ranges]
                match, remembered, drafts[at] = expected(text[:end].tolist(), sources)
                told, (before_it, was_remembered) = lookup.told[at].tolist(), matches[at]
                agreed = agreed if before_it else 0
                assert told == [before_it, agreed, match, was_remembered, remembered], (kind, at, told)
                assert lookup.matches[row].tolist() == [match, remembered], (kind, at)
                assert lookup.drafts[row].tolist() == drafts[at], (kind, at)
                matches[at] = match, remembered
                from_others += remembered
                compared += 1
            known = [length + count for length, count in zip(known, counts, strict=True)]
    assert from_others > compared // 8
    return compared


def pieces(text: npt.NDArray[np.int32], table: torch.Tensor, spare: list[int], random: Random) -> list[tuple[int, int]]:
    """Return ranges of *spare* rows of *table*, where parts of *text* with its end are written."""
    ranges = []
    for row in spare[: random.randrange(SOURCES)]:
        piece = text[random.randrange(len(text)) :]
        begin = random.randrange(800 - len(piece))
        table[row, begin : begin + len(piece)] = torch.from_numpy(piece)
        ranges.append((row * 800 + begin, row * 800 + begin + len(piece)))
    return ranges


def as_ints(values: list[int], device: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)
