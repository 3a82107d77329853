"""Cache folders that are either complete or absent, the weights in them, and hashes of their contents."""

from __future__ import annotations

import errno
import hashlib
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class ModelError(RuntimeError):
    """A model is unavailable; the message is one line that says what to do."""


WEIGHTS, PACKED = "model.safetensors", "model.packed"
"""Files that hold a draft's weights: SGLang's, and ours in a quarter of the bytes (``train.smollm2.rounding``)."""

STEP = ".step"
"""In a packed file, the end of the name of a matrix's steps."""


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


# Importing PyTorch would slow a command's help by 1.5 s.


def read_draft(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a draft's *folder*, packed or not, by the names that SGLang loads. Raises ModelError."""
    packed = folder / PACKED
    return read_weights(packed if packed.is_file() else folder / WEIGHTS)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, packed or in SafeTensors' format. Raises ModelError.

    A packed matrix is int8 levels [in, out] times a float32 step [in], in bfloat16, identical on every machine.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load, load_file

    try:
        if path.name != PACKED:
            return load_file(path)
        kept = load(zlib.decompress(path.read_bytes()))
    except (OSError, zlib.error, SafetensorError) as error:
        raise ModelError(f"{path}: cannot be read ({error})") from error
    for name in [name for name in kept if name.endswith(STEP)]:
        step, matrix = kept.pop(name), name.removesuffix(STEP)
        kept[matrix] = (kept[matrix].T.contiguous() * step).to(torch.bfloat16)
    return kept


def widen(draft: Path, folder: Path) -> None:
    """Write a *draft*, packed or not, to *folder* in the form that SGLang loads. Raises ModelError and OSError."""
    from safetensors.torch import save

    (folder / WEIGHTS).write_bytes(save(read_draft(draft), metadata={"format": "pt"}))
    shutil.copyfile(draft / "config.json", folder / "config.json")


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
        for left in parent.glob(f"{_PARTIAL}*"):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
        if shutil.disk_usage(parent).free < megabytes * 1e6:
            raise _full(parent, megabytes)
        partial, older = (Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=parent)) for _ in range(2))
        try:
            partial.chmod(0o755)
            fill(partial)
            if folder.exists():
                folder.rename(older)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(older, ignore_errors=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(parent, megabytes) from error
        raise ModelError(f"{error.filename or parent}: cannot be written ({error.strerror or error})") from error


def _full(parent: Path, megabytes: float) -> ModelError:
    free = shutil.disk_usage(parent).free / 1e6
    return ModelError(
        f"{parent}: the disk has {free:.0f} MB free but {megabytes:.0f} MB is needed; "
        "free some space, or set XDG_CACHE_HOME to another disk"
    )
