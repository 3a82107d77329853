"""Reading a cost profile from JSON, every value checked."""

from __future__ import annotations

import json
import math
from typing import Any

from sglang_adaptive.policy.config.schema import MAX_BATCH_SIZE, MAX_STEPS
from sglang_adaptive.policy.errors import ConfigError, shown
from sglang_adaptive.policy.profile.profile import (
    FORMAT,
    KEY_COUNTS,
    KEY_MAPS,
    KEY_TEXTS,
    MAX_CELLS,
    VERSION,
    CostProfile,
    ProfileCell,
    ProfileKey,
    ordered,
)

MAX_SECONDS = 3600.0
MAX_ROUNDS = 10**12


class ProfileError(ConfigError):
    """A profile that cannot be used; ``reason`` is "corrupt", "foreign" or "newer"."""

    def __init__(self, file: str, key: str | None, problem: str, expected: str, reason: str = "corrupt") -> None:
        super().__init__(file, key, problem, expected)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.file, self.key, self.problem, self.expected, self.reason)


def loads_profile(text: str, source: str) -> CostProfile:
    """Parse JSON text, read from *source*.

    Raises:
        ProfileError: With one line that names file, key, value and what is accepted.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ProfileError(source, None, f"broken JSON{where}", "a cost profile in JSON") from None
    return parse_profile(value, source)


def parse_profile(value: Any, source: str) -> CostProfile:
    """Check a decoded JSON value and return the profile it holds; raises as ``loads_profile``."""
    if not isinstance(value, dict):
        raise ProfileError(source, None, f"the top level is {shown(value)}", "a JSON object")
    if value.get("format") != FORMAT:
        raise ProfileError(source, "format", f"got {shown(value.get('format'))}", shown(FORMAT), "foreign")
    version: Any = value.get("version")
    if not _is_int(version, 1, 10**9):
        raise ProfileError(source, "version", f"got {shown(version)}", f"an integer from 1 to {VERSION}")
    if version > VERSION:
        problem = f"got {version}, from a newer release"
        raise ProfileError(source, "version", problem, f"at most {VERSION}", "newer")
    measured = value.get("measured", "")
    if not isinstance(measured, str):
        raise ProfileError(source, "measured", f"got {shown(measured)}", "a text")
    key = _parse_key(value.get("key"), source)
    return CostProfile(key, _parse_cells(value.get("cells"), source), measured)


def _parse_key(value: Any, source: str) -> ProfileKey:
    if not isinstance(value, dict):
        raise ProfileError(source, "key", f"got {shown(value)}", "an object")
    found: dict[str, Any] = {}
    for name in KEY_TEXTS:
        found[name] = value.get(name)
        if not isinstance(found[name], str):
            raise ProfileError(source, f"key.{name}", f"got {shown(found[name])}", "a text")
    for name in KEY_COUNTS:
        found[name] = value.get(name)
        if not _is_int(found[name], 0, 10**6):
            raise ProfileError(source, f"key.{name}", f"got {shown(found[name])}", "0 to 1000000")
    for name in KEY_MAPS:
        texts = found[name] = value.get(name, {})
        if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
            raise ProfileError(source, f"key.{name}", f"got {shown(texts)}", "an object of texts")
    return ProfileKey(**found)


def _parse_cells(value: Any, source: str) -> tuple[ProfileCell, ...]:
    if not isinstance(value, list) or len(value) > MAX_CELLS:
        raise ProfileError(source, "cells", f"got {shown(value)}", f"a list of at most {MAX_CELLS} cells")
    cells: dict[tuple[int, int, int], ProfileCell] = {}
    for index, entry in enumerate(value):
        cell = _parse_cell(entry, f"cells[{index}]", source)
        if cell.place in cells:
            budget = "" if cell.budget is None else f", budget {cell.budget}"
            problem = f"batch size {cell.batch_size}, steps {cell.steps}{budget} again"
            raise ProfileError(source, f"cells[{index}]", problem, "each cell once")
        cells[cell.place] = cell
    return ordered(cells.values())


def _parse_cell(entry: Any, where: str, source: str) -> ProfileCell:
    if not isinstance(entry, dict):
        raise ProfileError(source, where, f"got {shown(entry)}", "an object")
    batch: Any = entry.get("batch_size")
    steps: Any = entry.get("steps")
    seconds: Any = entry.get("seconds")
    rounds: Any = entry.get("rounds")
    if not _is_int(batch, 1, MAX_BATCH_SIZE):
        raise ProfileError(source, f"{where}.batch_size", f"got {shown(batch)}", f"1 to {MAX_BATCH_SIZE}")
    if not _is_int(steps, 0, MAX_STEPS):
        raise ProfileError(source, f"{where}.steps", f"got {shown(steps)}", f"0 to {MAX_STEPS}")
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not math.isfinite(seconds) or not 0 < seconds <= MAX_SECONDS:
        expected = f"above 0, at most {MAX_SECONDS:g}"
        raise ProfileError(source, f"{where}.seconds", f"got {shown(seconds)}", expected)
    if rounds is not None and not _is_int(rounds, 0, MAX_ROUNDS):
        raise ProfileError(source, f"{where}.rounds", f"got {shown(rounds)}", "an integer or null")
    budget: Any = entry.get("budget")
    if budget is not None and not _is_int(budget, 1, steps - 1):
        raise ProfileError(source, f"{where}.budget", f"got {shown(budget)}", "1 to one below the steps, or null")
    return ProfileCell(batch, steps, float(seconds), rounds, budget)


def _is_int(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
