"""Hashes of files and of weights, whatever wrote them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def sha256_of_file(path: Path) -> str:
    """Return the file's SHA-256 in hex. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_weights(weights: Mapping[str, Any]) -> str:
    """Return the SHA-256 over name, shape and bytes of each array, names in order; file headers do not count."""
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(f"{name} {tuple(weights[name].shape)}\n".encode())
        found.update(memoryview(weights[name]).cast("B"))
    return found.hexdigest()
