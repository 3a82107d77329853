"""The JSON of one phase, written after every turn, and read back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.server.results import origin
from benchmarks.server.servers import Running

SCHEMA = "served-1"
WIDTH = 240


class Report:
    """One phase's file; a phase that is cut off leaves what it measured."""

    def __init__(self, folder: Path, phase: str, what: str, plan: dict[str, Any], argv: Sequence[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{phase}.json"
        self.content: dict[str, Any] = {
            "schema": SCHEMA,
            "phase": phase,
            "what": what,
            "provenance": origin(argv, "benchmarks.served"),
            "plan": plan,
            "servers": {},
            "notes": [],
        }

    def describe(self, servers: Sequence[Running]) -> None:
        """Keep each server's command line and how long it took to start."""
        for server in servers:
            words = " ".join(Path(word).name if word.startswith("/") else word for word in server.command)
            self.content["servers"][server.name] = {"command": words, "start_seconds": server.start_seconds}

    def note(self, line: str) -> None:
        """Keep and print what did not go as planned."""
        self.content["notes"].append(line[:400])
        print(f"  note: {line}", flush=True)

    def write(self) -> None:
        """Write the file, whole or not at all; what is short takes one line."""
        partial = self.path.with_suffix(".part")
        partial.write_text(_lines(_rounded(self.content), 0) + "\n")
        partial.replace(self.path)


def read(path: Path) -> dict[str, Any] | None:
    """Return a phase's content, None where there is no such file. Raises ValueError for another kind of file."""
    if not path.exists():
        return None
    content: dict[str, Any] = json.loads(path.read_text())
    if content.get("schema") != SCHEMA:
        raise ValueError(f"{path.name}: schema: got {content.get('schema')!r}; expected {SCHEMA!r}")
    return content


def _rounded(value: Any) -> Any:
    """Return *value* with every float at five digits: no clock here is better than that."""
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
