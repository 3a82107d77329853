"""Cache folders that are either complete or absent, and hashes of their contents."""

from __future__ import annotations

import errno
import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class ModelError(RuntimeError):
    """A model is unavailable; the message is one line that says what to do."""


WEIGHTS, PACKED = "model.safetensors", "model.packed"
"""Files that hold a draft's weights: SGLang's and ours."""


def sha256_of_file(path: Path) -> str:
    """Return the file's SHA-256 in hex. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_weights(weights: Mapping[str, Any]) -> str:
    """Return the SHA-256 over name, shape and bytes of each array, sorted by name; file headers do not count."""
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(f"{name} {tuple(weights[name].shape)}\n".encode())
        found.update(memoryview(weights[name]).cast("B"))
    return found.hexdigest()


_PARTIAL = ".partial-"
STALE_SECONDS = 3600.0
"""A partial folder older than this was left by a killed process."""


def make_whole(folder: Path, fill: Callable[[Path], None], megabytes: float) -> None:
    """Let *fill* write into a new folder beside *folder*, then rename it, replacing an older *folder*.

    Raises ModelError when the disk has less than *megabytes* free or cannot be written. No partial folder remains.
    """
    parent = folder.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(parent)
        _check_space(parent, megabytes)
        partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=parent))
        try:
            partial.chmod(0o755)
            fill(partial)
            _rename(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(parent, megabytes) from error
        raise ModelError(f"{error.filename or parent}: cannot be written ({error.strerror or error})") from error


def _rename(partial: Path, folder: Path) -> None:
    if folder.exists():
        older = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=folder.parent))
        folder.rename(older / folder.name)
        partial.rename(folder)
        shutil.rmtree(older, ignore_errors=True)
    else:
        partial.rename(folder)


def _check_space(parent: Path, megabytes: float) -> None:
    if shutil.disk_usage(parent).free < megabytes * 1e6:
        raise _full(parent, megabytes)


def _full(parent: Path, megabytes: float) -> ModelError:
    free = shutil.disk_usage(parent).free / 1e6
    return ModelError(
        f"{parent}: the disk has {free:.0f} MB free but {megabytes:.0f} MB is needed; "
        "free some space, or set XDG_CACHE_HOME to another disk"
    )


def _remove_stale(parent: Path) -> None:
    for left in parent.glob(f"{_PARTIAL}*"):
        if time.time() - left.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
