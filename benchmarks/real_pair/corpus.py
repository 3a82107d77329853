"""Text found on the machine: source code and prose, cut into training text and held-out prompts."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

KINDS = {"code": (".py", ".pyi"), "prose": (".md", ".rst", ".txt")}
SMALLEST, LARGEST = 1_000, 300_000
"""Bytes of a file; longer ones are tables and generated code."""
HELD_OUT_ONE_IN = 50
SEPARATOR = b"\n\0\n"


@dataclass(frozen=True)
class Corpus:
    """The text of one kind."""

    train: Tensor
    """Bytes, uint8 [N], on the training device."""
    held_out: list[bytes]
    """Whole files that are not in *train*."""

    def windows(self, count: int, length: int) -> Tensor:
        """Return *count* random windows as token ids [count, length]."""
        starts = torch.randint(len(self.train) - length, (count, 1))
        return self.train[starts + torch.arange(length)].long()


def gather(roots: Sequence[Path], kind: str, most_bytes: int) -> Corpus:
    """Read every file of *kind* below *roots*, each content once, up to *most_bytes*.

    Raises ValueError when there is too little to train on.
    """
    seen: set[bytes] = set()
    train: list[bytes] = []
    held_out: list[bytes] = []
    total = 0
    for path in _files(roots, KINDS[kind]):
        content = _read(path)
        digest = hashlib.sha1(content, usedforsecurity=False).digest()
        if not SMALLEST <= len(content) <= LARGEST or digest in seen:
            continue
        seen.add(digest)
        if zlib.crc32(content) % HELD_OUT_ONE_IN == 0:
            held_out.append(content)
        else:
            train.append(content + SEPARATOR)
            total += len(content)
        if total >= most_bytes:
            break
    if total < 100 * SMALLEST or not held_out:
        raise ValueError(f"only {total} bytes of {kind} below {', '.join(map(str, roots))}")
    text = np.frombuffer(b"".join(train), dtype=np.uint8).copy()
    return Corpus(torch.from_numpy(text).to(torch.get_default_device()), held_out)


def _files(roots: Sequence[Path], suffixes: tuple[str, ...]) -> Iterator[Path]:
    for root in roots:
        for folder, below, names in os.walk(root):
            below.sort()
            yield from (Path(folder, name) for name in sorted(names) if name.endswith(suffixes))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
