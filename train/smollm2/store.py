"""Token ids on disk: numbered shards of .npy files, each complete or absent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Ids = list[int]


@dataclass(frozen=True)
class Documents:
    """Documents, one after another: *tokens* uint16 [N]; document i spans starts[i] to starts[i + 1].

    Its first prompts[i] tokens are a question, the others its answer.
    """

    tokens: npt.NDArray[np.uint16]
    starts: npt.NDArray[np.int64]
    prompts: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: int) -> npt.NDArray[np.uint16]:
        return self.tokens[self.starts[index] : self.starts[index + 1]]

    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.starts)

    def lists(self) -> Iterator[Ids]:
        for index in range(len(self)):
            yield self[index].tolist()


class Shards:
    """A folder of documents that grows by whole shards. NNNN.tokens.npy is uint16 [N], NNNN.spans.npy int32 [R, 2]:
    the tokens of each document's question, and of the whole document."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def count(self) -> int:
        """Return the number of shards."""
        return len(self._spans())

    def append(self, documents: Sequence[Ids], prompts: Sequence[int] | None = None) -> None:
        """Write one shard; without *prompts*, documents are only questions."""
        spans = np.array([[len(one), len(one)] for one in documents], np.int32).reshape(-1, 2)
        if prompts is not None:
            spans[:, 0] = prompts
        tokens = np.array([token for one in documents for token in one], np.int64)
        if tokens.size and tokens.max() > np.iinfo(np.uint16).max:
            raise ValueError(f"token {tokens.max()}: expected a vocabulary of at most 65,536 tokens")
        number = self.count()
        save(self.folder / f"{number:04}.tokens.npy", tokens.astype(np.uint16))
        save(self.folder / f"{number:04}.spans.npy", spans)  # last, because a shard without it does not count

    def documents(self) -> int:
        """Return the number of documents."""
        return sum(len(np.load(file)) for file in self._spans())

    def read(self) -> Documents:
        """Return the documents of all shards."""
        return read([self])

    def _spans(self) -> list[Path]:
        return sorted(self.folder.glob("*.spans.npy"))

    def files(self) -> list[tuple[Path, Path]]:
        return [(spans.with_name(spans.name.replace("spans", "tokens")), spans) for spans in self._spans()]


def read(several: Sequence[Shards]) -> Documents:
    """Return the documents of several folders, in order."""
    files = [pair for shards in several for pair in shards.files()]
    spans = np.concatenate([np.zeros((0, 2), np.int32), *(np.load(file) for _, file in files)])
    tokens = np.concatenate([np.zeros(0, np.uint16), *(np.load(file) for file, _ in files)])
    return Documents(tokens, np.concatenate([[0], np.cumsum(spans[:, 1], dtype=np.int64)]), spans[:, 0])


def save(path: Path, values: npt.NDArray[np.generic]) -> None:
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        np.save(file, values)
    os.replace(partial, path)
