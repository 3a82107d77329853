"""The JSON of a run: what was measured, and where it comes from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.server.servers import Running
from benchmarks.server.workloads import Plan, Row
from sglang_adaptive import provenance

SCHEMA = 2
SIMULATED = "simulated acceptance: declared process, drawn per request and round"
REAL = "the models' own acceptance"
WRITE_SECONDS = 5.0
_REQUIRED = {"schema": int, "name": str, "acceptance": str, "provenance": dict, "plan": dict, "rows": list}
_ROW = {"workload": str, "contender": str, "case": dict, "tokens_per_second": float, "passes": list}


class BadResult(ValueError):
    """A file is no result of this harness; the message is one line."""


class Result:
    """One run's file, written every few seconds so that a run that is cut off leaves what it measured."""

    def __init__(self, path: Path, name: str, plan: Plan, simulated: bool, argv: Sequence[str]) -> None:
        self.path = path
        self._rows: dict[str, Row] = {}
        self._written = 0.0
        self._document: dict[str, Any] = {
            "schema": SCHEMA,
            "name": name,
            "acceptance": SIMULATED if simulated else REAL,
            "provenance": origin(argv),
            "plan": asdict(plan),
            "servers": {},
            "notes": [],
            "rows": [],
        }

    def add(self, row: Row) -> None:
        """Take a row, instead of an earlier one of the same contender and case."""
        self._rows[json.dumps([row["workload"], row["contender"], row["case"]])] = row
        if time.monotonic() - self._written > WRITE_SECONDS:
            self.write()

    def note(self, line: str) -> None:
        """Keep a line about something that did not go as planned, and print it."""
        self._document["notes"].append(line)
        print(f"  note: {line}", flush=True)

    def describe(self, server: Running) -> None:
        """Keep a server's command line, start-up, and what its plugin says of itself."""
        self._document["servers"][server.name] = {
            "command": _words(server.command),
            "plugins": server.plugins.split(","),
            "startup": server.startup(),
            "adaptive": _without(server.folder, server.adaptive()) if server.policy.ours else None,
        }

    def write(self) -> None:
        """Write the file, whole or not at all."""
        self._written = time.monotonic()
        partial = self.path.with_suffix(".part")
        partial.write_text(json.dumps({**self._document, "rows": list(self._rows.values())}, indent=1))
        partial.replace(self.path)


def _without(folder: Path, told: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return what a server said, less the names of the machine's folders in its own files' paths."""
    cleaned: dict[str, Any] | None = json.loads(json.dumps(told).replace(f"{folder}{os.sep}", ""))
    return cleaned


def origin(argv: Sequence[str], module: str = "benchmarks.server") -> dict[str, Any]:
    """Return versions, commit, hardware, day and command line; no folder of the machine."""
    names = ("sglang", "torch", "triton", "sglang-kernel", "flashinfer-python", "aiohttp")
    return {
        "command": _words(["python", "-m", module, *argv]),
        "commit": provenance.git_commit() or os.environ.get("BENCHMARK_COMMIT"),
        "versions": provenance.versions(*names),
        "gpu": _gpu(),
        "cpu": provenance.cpu_model(),
        "cores": provenance.cpu_cores(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def read(path: Path) -> dict[str, Any]:
    """Return a result. Raises BadResult, naming file, key and what is accepted."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadResult(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadResult(f"{path}: is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadResult(f"{path}: expected a JSON object")
    if document.get("schema") != SCHEMA:
        raise BadResult(f"{path}: schema: got {document.get('schema')!r}; expected {SCHEMA}")
    _check(path, "", document, _REQUIRED)
    for index, row in enumerate(document["rows"]):
        _check(path, f"rows[{index}].", row, _ROW)
    return document


def read_folder(folder: Path) -> list[dict[str, Any]]:
    """Return every result in *folder*. Raises BadResult when there is none; other JSON files are passed over."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(read(path))
        except BadResult as problem:
            print(f"passed over: {problem}", file=sys.stderr)
    if not found:
        raise BadResult(f"{folder}: holds no result of this harness")
    return found


def rows_of(documents: Iterable[dict[str, Any]], workload: str) -> list[Row]:
    """Return the rows of one workload, of all documents."""
    return [row for document in documents for row in document["rows"] if row["workload"] == workload]


def _check(path: Path, where: str, value: Any, keys: dict[str, type]) -> None:
    for key, kind in keys.items():
        found = value.get(key) if isinstance(value, dict) else None
        if not isinstance(found, kind) and not (kind is float and isinstance(found, int)):
            raise BadResult(f"{path}: {where}{key}: got {found!r}; expected {kind.__name__}")


def _gpu() -> str | None:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        query += ["--id", visible]  # a host's other GPUs have no part in the run
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _words(command: Sequence[str]) -> str:
    return " ".join(Path(word).name if word.startswith("/") else word for word in command)
