"""Documents packed into rows, and rows into batches; the same seed and epoch give the same batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from train.smollm2.plan import Plan
from train.smollm2.store import Documents

OPEN_ROWS = 32
"""How many rows a document is tried in before it starts a new one."""

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """A batch of B rows of width T, all arrays [B, T]. Padding is its own document -1 at position 0."""

    ids: Integers
    document: Integers
    """Number of the document within its row."""
    position: Integers
    """Position within the document."""
    prompt: Integers
    """Tokens of the document's question."""
    length: Integers
    """Tokens of the whole document; 0 for padding."""


def epoch_of(documents: Documents, plan: Plan, epoch: int) -> list[list[list[int]]]:
    """Return the batches of an *epoch*: each is a list of rows, each row a list of documents, in random order.

    Rows of a batch have the same width. A document longer than the largest width is left out.
    """
    rng = np.random.default_rng([plan.seed, epoch])
    lengths = documents.lengths()
    class_of = np.searchsorted(plan.widths, lengths)
    batches: list[list[list[int]]] = []
    for index, width in enumerate(plan.widths):
        rows = _rows(rng.permutation(np.flatnonzero(class_of == index)).tolist(), lengths, width)
        rng.shuffle(rows)
        count = max(1, plan.train_tokens // width)
        batches += [rows[first : first + count] for first in range(0, len(rows), count)]
    rng.shuffle(batches)
    return batches


def packed(documents: Documents, rows: Sequence[Sequence[int]], widths: Sequence[int]) -> Rows:
    """Return the arrays of a batch; its width is the shortest that fits its longest row."""
    longest = max(sum(int(documents.starts[one + 1] - documents.starts[one]) for one in row) for row in rows)
    shape = (len(rows), next(width for width in widths if width >= longest))
    ids, position, prompt, length = (np.zeros(shape, np.int64) for _ in range(4))
    document = np.full(shape, -1, np.int64)
    for row, several in enumerate(rows):
        at = 0
        for number, index in enumerate(several):
            tokens = documents[index]
            part = (row, slice(at, at + len(tokens)))
            ids[part], document[part], position[part] = tokens, number, np.arange(len(tokens))
            prompt[part], length[part] = documents.prompts[index], len(tokens)
            at += len(tokens)
    return Rows(ids, document, position, prompt, length)


def _rows(indices: Sequence[int], lengths: Integers, width: int) -> list[list[int]]:
    """Put each document into the first open row with room for it."""
    full: list[list[int]] = []
    opened: list[tuple[int, list[int]]] = []
    for index in indices:
        size = int(lengths[index])
        place = next((at for at, (used, _) in enumerate(opened) if used + size <= width), None)
        if place is not None:
            used, row = opened[place]
            row.append(index)
            opened[place] = (used + size, row)
            continue
        if len(opened) == OPEN_ROWS:
            fullest = max(range(OPEN_ROWS), key=lambda at: opened[at][0])
            full.append(opened.pop(fullest)[1])
        opened.append((size, [index]))
    return full + [row for _, row in opened]
