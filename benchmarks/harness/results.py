"""The JSON of a run: results and their provenance, written atomically after every step."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sglang_adaptive import provenance

SIMULATED = "simulated acceptance: declared process, drawn per request and round"
REPLAYED = "replayed acceptance: recorded, position by position"
REAL = "the models' own acceptance"
WIDTH = 240


class BadResult(ValueError):
    """A file is not a result of this harness; the message is one line."""


class Report:
    """One file of a run; an interrupted run leaves what it has measured."""

    def __init__(self, path: Path, module: str, argv: Sequence[str], **content: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._begin = path, time.monotonic()
        self.lock = threading.RLock()
        """Held while the content changes or is written, where several threads report."""
        self.content: dict[str, Any] = {**content, "provenance": origin(module, argv), "notes": []}

    def add(self, **found: Any) -> None:
        """Add to the content, and write it."""
        with self.lock:
            self.content.update(found)
            self.write()

    def note(self, line: str) -> None:
        """Record and print a line about something that did not go as planned."""
        with self.lock:
            self.content["notes"].append(line[:400])
        self.say(f"note: {line}")

    def say(self, line: str) -> None:
        """Print *line* with the seconds since the start."""
        print(f"{time.monotonic() - self._begin:6.1f} s  {line}", flush=True)

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Record an error of the block, *what* went wrong, and continue; the file is written in any case."""
        try:
            yield
        except Exception as problem:
            self.note(f"{what}: {type(problem).__name__}: {problem}")
        finally:
            self.write()

    def write(self) -> None:
        """Write the file."""
        with self.lock:
            write(self.path, self.content)


def write(path: Path, content: Any) -> None:
    """Write *content* as JSON atomically, with floats at five digits and short values on one line."""
    partial = path.with_suffix(".part")
    partial.write_text(_lines(_rounded(content), 0) + "\n", encoding="utf-8")
    partial.replace(path)


def command_parser(module: str, about: str | None) -> argparse.ArgumentParser:
    """Return the parser of ``python -m benchmarks.MODULE``, with docstring *about* and no options yet."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{module}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def origin(module: str, argv: Sequence[str]) -> dict[str, Any]:
    """Return versions, commit, hardware, day and command line, without local folders.

    *module* is one of ``benchmarks``, or another with its package.
    """
    names = ("sglang", "torch", "triton", "sglang-kernel", "flashinfer-python", "transformers", "aiohttp", "numpy")
    return {
        "command": provenance.pasteable(["python", "-m", module if "." in module else f"benchmarks.{module}", *argv]),
        "commit": provenance.git_commit(),
        "versions": provenance.versions(*names),
        "gpu": gpu(),
        "cpu": provenance.cpu_model(),
        "cores": provenance.cpu_cores(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def gpu() -> str | None:
    """Return name and driver of the GPUs that this process may use, None if there are none."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        query += ["--id", visible]  # the host's other GPUs are not part of the run
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def read(path: Path) -> dict[str, Any]:
    """Return a file's object. Raises BadResult, naming file and problem."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadResult(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadResult(f"{path}: is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadResult(f"{path}: expected a JSON object")
    return content


def _rounded(value: Any) -> Any:
    """Return *value* with every float at five digits: no clock here is more accurate."""
    if isinstance(value, dict):
        return {str(key): _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _lines(value: Any, depth: int) -> str:
    if len(text := json.dumps(value)) < WIDTH:
        return text
    nested = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not any(isinstance(one, dict | list) and one for one in nested):
        return text
    pad = " " * (depth + 1)
    if isinstance(value, dict):
        parts = [f"{pad}{json.dumps(key)}: {_lines(one, depth + 1)}" for key, one in value.items()]
        return "{\n" + ",\n".join(parts) + "\n" + " " * depth + "}"
    return "[\n" + ",\n".join(pad + _lines(one, depth + 1) for one in value) + "\n" + " " * depth + "]"
