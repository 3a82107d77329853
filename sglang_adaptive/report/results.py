"""Reads result files, and recognizes their kind by their keys."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEMO, SIMULATION, SERVER = "demo", "simulation", "server benchmark"
TEXT, TRAFFIC = "simulation of recorded text", "simulation of traffic"
_KEYS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (DEMO, ("schema", "policies", "phases", "timeline")),
    (SIMULATION, ("format", "provenance", "targets", "suites")),
    (TEXT, ("format", "provenance", "gates", "cells")),
    (TRAFFIC, ("format", "provenance", "depths", "batches")),
    (SERVER, ("schema", "acceptance", "provenance", "rows")),
)
"""The keys that identify a file; it may have more."""

MADE_BY = "sglang-adaptive demo --json, sglang-adaptive simulate --json or python -m benchmarks.policies"


class ReportError(ValueError):
    """A result that cannot be reported; the message is one line that begins with the file."""


@dataclass(frozen=True, slots=True)
class Result:
    """One result file."""

    name: str
    """The file's name, without its folder."""

    kind: str
    data: dict[str, Any]


def read(path: Path) -> Result:
    """Read one result file. Raises ReportError when it is unreadable, not JSON, or of an unknown kind."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:  # also raised for text that is not UTF-8
        raise ReportError(f"{path}: is not JSON ({error})") from None
    for kind, keys in _KEYS:
        if isinstance(data, dict) and all(key in data for key in keys):
            return Result(path.name, kind, data)
    raise ReportError(f"{path}: is not a known result; expected one of {MADE_BY}")


def source(data: dict[str, Any]) -> dict[str, str]:
    """Return command, commit, versions, machine and date as text, as far as a result has them."""
    found = {**data.get("provenance", {}), **data}
    facts = {
        "command": found.get("command"),
        "date": found.get("date"),
        "hardware": found.get("hardware") or found.get("gpu") or _cpu(found.get("cpu")),
        "attention backend": found.get("attention_backend"),
        "acceptance": found.get("acceptance"),
        "profile": found.get("profile"),
        "commit": found.get("commit") or found.get("git_commit"),
        "versions": ", ".join(f"{name} {version}" for name, version in (found.get("versions") or {}).items()),
        "note": found.get("note"),
    }
    return {name: str(value) for name, value in facts.items() if value}


def _cpu(cpu: Any) -> str | None:
    if isinstance(cpu, dict):
        return f"{cpu['model']}, {cpu['cores']} cores, load {cpu['load_before']} before"
    return cpu if cpu is None else str(cpu)
