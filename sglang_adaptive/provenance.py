"""Provenance of a measurement: versions, commit and processor, without paths of the machine."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path, PurePath

from sglang_adaptive import __version__

PACKAGE = Path(__file__).resolve().parent
COMMIT = "SGLANG_ADAPTIVE_COMMIT"
"""Environment variable: the commit of the package, where the checkout that it runs from does not tell."""
KEY_FLAGS = ("--api-key", "--admin-api-key")
"""Options whose values nobody else may see."""


def versions(*distributions: str) -> dict[str, str | None]:
    """Return the versions of Python, this package and *distributions*; None for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "sglang_adaptive": __version__}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def git_commit() -> str | None:
    """Return the commit that the package runs from, with "-dirty" if its code has changed since.

    What COMMIT says comes first; outside a checkout of this project, also inside another one, nothing else tells.
    """
    if told := os.environ.get(COMMIT):
        return told
    try:
        _git("ls-files", "--error-unmatch", "__init__.py")
        return _git("rev-parse", "HEAD") + ("-dirty" if _git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def cpu_model() -> str:
    """Return the processor's name as the operating system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cpu_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def command_line(subcommand: str, argv: Sequence[str]) -> str:
    """Return the command as typed, without the folders of absolute paths."""
    return pasteable(["sglang-adaptive", subcommand, *argv])


def pasteable(command: Sequence[str]) -> str:
    """Return the words of *command* as a shell command line, without keys and the folders of absolute paths."""
    before = ["", *command[:-1]]
    return shlex.join("KEY" if flag in KEY_FLAGS else _shared(word) for flag, word in zip(before, command, strict=True))


def _shared(word: str) -> str:
    """Return *word* as others may see it."""
    flag, equals, value = word.partition("=")
    if equals and flag.startswith("--"):
        return f"{flag}={'KEY' if flag in KEY_FLAGS else _shared(value)}"
    return PurePath(word).name if PurePath(word).is_absolute() else re.sub(r"(?<=://)[^/@]*@", "", word)


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(PACKAGE), *words], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
