"""The patches in ``patches/0.5.23`` applied to copies of the installed SGLang; the installation is only read."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

PATCHES = tuple(sorted((Path(__file__).parents[1] / "patches" / "0.5.23").glob("*.patch")))
CHECKOUT_PREFIX = "python/"
"""Folder of the package in an SGLang checkout; paths in the patches start with it."""


def package() -> Path:
    """Return the folder of the installed ``sglang`` without importing it."""
    spec = find_spec("sglang")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def touched(patches: Iterable[Path] = PATCHES) -> list[str]:
    """Return the files that *patches* change, relative to site-packages, such as ``sglang/srt/server_args.py``."""
    marker = f"+++ b/{CHECKOUT_PREFIX}"
    lines = (line for patch in patches for line in patch.read_text().splitlines())
    return sorted({line.removeprefix(marker) for line in lines if line.startswith(marker)})


def copy_touched(folder: Path, prefix: str = CHECKOUT_PREFIX) -> Path:
    """Copy the released version of every file that the patches change to *folder*/*prefix*; return *folder*."""
    for name in touched():
        target = folder / prefix / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(package().parent / name, target)
    return folder


def git_apply(folder: Path, patches: Sequence[Path], *options: str) -> subprocess.CompletedProcess[str]:
    """Run ``git apply`` in *folder* as if outside any repository."""
    return subprocess.run(
        ["git", "apply", *options, *map(str, patches)],
        cwd=folder,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        capture_output=True,
        text=True,
    )


def patched_site(folder: Path, patches: Sequence[Path] = PATCHES) -> Path:
    """Return *folder*, for use on PYTHONPATH: ``sglang`` made of links, with real files where patched.

    Folders on the path to a patched file are real too, including bytecode caches: through a link, Python would store
    the patched modules' bytecode in the installation.
    """
    _link_around(package(), folder / "sglang", [Path(name).relative_to("sglang") for name in touched(patches)])
    for name in touched(patches):
        shutil.copyfile(package().parent / name, folder / name)
    done = git_apply(folder, patches, "-p2")
    assert done.returncode == 0, done.stderr
    return folder


def _link_around(source: Path, target: Path, left_out: list[Path]) -> None:
    target.mkdir(parents=True)
    inner: dict[str, list[Path]] = {}
    for path in left_out:
        inner.setdefault(path.parts[0], []).append(Path(*path.parts[1:]))
    for entry in source.iterdir():
        if entry.name == "__pycache__":
            stems = {Path(name).stem for name in inner}
            _link_bytecode(entry, target / entry.name, stems)
        elif entry.name not in inner:
            (target / entry.name).symlink_to(entry)
        elif entry.is_dir():
            _link_around(entry, target / entry.name, inner[entry.name])


def _link_bytecode(source: Path, target: Path, left_out: set[str]) -> None:
    target.mkdir()
    for entry in source.iterdir():
        if entry.name.split(".")[0] not in left_out:
            (target / entry.name).symlink_to(entry)
