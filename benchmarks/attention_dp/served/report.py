"""A JSON file a phase, whole or not at all, and lines on the console."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.server.results import origin


class Report:
    """What the phases found; several threads may add to it."""

    def __init__(self, folder: Path, argv: list[str], begin: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._begin, self._lock = folder, begin, threading.Lock()
        self._about = origin(argv, "benchmarks.attention_dp.served")
        self._phases: dict[str, dict[str, Any]] = {}

    def add(self, phase: str, **found: Any) -> None:
        """Add to what *phase* found, and write its file."""
        with self._lock:
            mine = self._phases.setdefault(phase, {})
            mine.update(found)
            path = self._folder / f"{phase}.json"
            scratch = path.with_suffix(".part")
            scratch.write_text(json.dumps({"provenance": self._about, **mine}, indent=1) + "\n", encoding="utf-8")
            scratch.replace(path)

    def say(self, line: str) -> None:
        """Print *line* with the seconds since the begin."""
        with self._lock:
            print(f"{time.monotonic() - self._begin:6.1f} s  {line}", flush=True)

    def summary(self) -> str:
        """Return each phase's verdict."""
        return "; ".join(f"{name}: {found.get('verdict', found.get('error'))}" for name, found in self._phases.items())

    def is_well(self) -> bool:
        """Return whether no phase failed or found a difference."""
        return all(found.get("verdict") == "well" and "error" not in found for found in self._phases.values())
