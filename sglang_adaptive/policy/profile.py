"""Cost profiles: seconds per decode round by batch size and draft steps, their key, and their JSON.

``runtime.profile_store`` keeps them on disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sglang_adaptive.policy.errors import ConfigError, shown
from sglang_adaptive.policy.options import MAX_BATCH_SIZE, MAX_STEPS, is_integer

FORMAT, VERSION = "sglang-adaptive cost profile", 1
MAX_CELLS = 4096
MAX_SECONDS = 3600.0
KEY_TEXTS = ("target_model", "draft_model", "gpu_name", "attention_backend")
KEY_COUNTS = ("gpu_count", "tp_size")
KEY_MAPS = ("dtypes", "versions")
_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """What a round time depends on; profiles are shared only between equal keys."""

    target_model: str
    draft_model: str
    gpu_name: str
    gpu_count: int
    tp_size: int
    attention_backend: str
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """For example ``{"model": "bfloat16", "kv_cache": "auto"}``."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Package versions, for example ``{"sglang": "0.5.23"}``."""

    def as_dict(self) -> dict[str, Any]:
        """Return the key as JSON builtins."""
        return asdict(self)

    def digest(self) -> str:
        """Return 16 hexadecimal digits that differ between different keys."""
        text = json.dumps(self.as_dict(), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class ProfileCell:
    """The time of one round at one batch size and depth."""

    batch_size: int
    steps: int
    seconds: float
    """Median wall time of a steady decode round."""
    rounds: int | None = None
    """Rounds measured; None if they were not counted."""

    @property
    def place(self) -> tuple[int, int]:
        """Batch size and steps."""
        return self.batch_size, self.steps

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Cells of one key, ascending by batch size and steps; ``measured`` describes how, in words."""

    key: ProfileKey
    cells: tuple[ProfileCell, ...]
    measured: str = ""

    def merged(self, other: CostProfile) -> CostProfile:
        """Return this profile with the cells of *other* that it lacks."""
        own = {c.place: c for c in self.cells}
        theirs = {c.place: c for c in other.cells}
        return CostProfile(self.key, ordered((theirs | own).values()), self.measured or other.measured)

    def dumps(self) -> str:
        """Return the JSON text that ``loads_profile`` reads, one cell per line."""
        top = {"format": FORMAT, "version": VERSION, "key": self.key.as_dict(), "measured": self.measured}
        head = json.dumps(top, indent=1)[:-2]
        rows = ",\n".join("  " + json.dumps(cell.as_dict()) for cell in self.cells)
        return f'{head},\n "cells": [\n{rows}\n ]\n}}\n'


def ordered(cells: Iterable[ProfileCell]) -> tuple[ProfileCell, ...]:
    """Return *cells* sorted by place, smallest batches first; at most ``MAX_CELLS``."""
    return tuple(sorted(cells, key=lambda cell: cell.place)[:MAX_CELLS])


def shipped_config(name: str) -> Path:
    """Return the path of *name* in ``configs/``, as in ``shipped_config("conservative.json")``.

    A wheel has the folder inside the package; a checkout has it beside the package. Raises FileNotFoundError.
    """
    for folder in (_PACKAGE / "configs", _PACKAGE.parent / "configs"):
        if (found := folder / name).exists():
            return found
    raise FileNotFoundError(f"no {name!r} among the shipped configurations")


# -- reading, with every value checked -------------------------------------------------------------------------------


class ProfileError(ConfigError):
    """An unusable profile; ``reason`` is "corrupt", "foreign" or "newer"."""

    def __init__(self, file: str, key: str | None, problem: str, expected: str, reason: str = "corrupt") -> None:
        super().__init__(file, key, problem, expected)
        self.reason = reason


def loads_profile(text: str, source: str) -> CostProfile:
    """Parse JSON text, read from *source*; raises ProfileError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ProfileError(source, None, f"broken JSON{where}", "a cost profile in JSON") from None
    if not isinstance(value, dict):
        raise ProfileError(source, None, f"the top level is {shown(value)}", "a JSON object")
    if value.get("format") != FORMAT:
        raise ProfileError(source, "format", f"got {shown(value.get('format'))}", shown(FORMAT), "foreign")
    version: Any = value.get("version")
    _require(is_integer(version, 1, 10**9), source, "version", version, f"an integer from 1 to {VERSION}")
    if version > VERSION:
        problem = f"got {version}, from a newer release"
        raise ProfileError(source, "version", problem, f"at most {VERSION}", "newer")
    measured = value.get("measured", "")
    _require(isinstance(measured, str), source, "measured", measured, "a text")
    return CostProfile(_parse_key(value.get("key"), source), _parse_cells(value.get("cells"), source), measured)


def _parse_key(value: Any, source: str) -> ProfileKey:
    _require(isinstance(value, dict), source, "key", value, "an object")
    found = {name: value.get(name) for name in (*KEY_TEXTS, *KEY_COUNTS)}
    found |= {name: value.get(name, {}) for name in KEY_MAPS}
    for name in KEY_TEXTS:
        _require(isinstance(found[name], str), source, f"key.{name}", found[name], "a text")
    for name in KEY_COUNTS:
        _require(is_integer(found[name], 0, 10**6), source, f"key.{name}", found[name], "0 to 1000000")
    for name in KEY_MAPS:
        texts = isinstance(found[name], dict) and all(isinstance(text, str) for text in found[name].values())
        _require(texts, source, f"key.{name}", found[name], "an object of texts")
    return ProfileKey(**found)


def _parse_cells(value: Any, source: str) -> tuple[ProfileCell, ...]:
    fits = isinstance(value, list) and len(value) <= MAX_CELLS
    _require(fits, source, "cells", value, f"a list of at most {MAX_CELLS} cells")
    cells: dict[tuple[int, int], ProfileCell] = {}
    for index, entry in enumerate(value):
        cell = _parse_cell(entry, f"cells[{index}]", source)
        if cell.place in cells:
            problem = f"batch size {cell.batch_size}, steps {cell.steps} again"
            raise ProfileError(source, f"cells[{index}]", problem, "each cell once")
        cells[cell.place] = cell
    return ordered(cells.values())


def _parse_cell(entry: Any, where: str, source: str) -> ProfileCell:
    _require(isinstance(entry, dict), source, where, entry, "an object")
    batch, steps, seconds, rounds = map(entry.get, ("batch_size", "steps", "seconds", "rounds"))
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    for name, value, accepted, expected in (
        ("batch_size", batch, is_integer(batch, 1, MAX_BATCH_SIZE), f"1 to {MAX_BATCH_SIZE}"),
        ("steps", steps, is_integer(steps, 0, MAX_STEPS), f"0 to {MAX_STEPS}"),
        ("seconds", seconds, number and 0 < seconds <= MAX_SECONDS, f"above 0, at most {MAX_SECONDS:g}"),
        ("rounds", rounds, rounds is None or is_integer(rounds, 0, 10**12), "an integer or null"),
    ):
        _require(accepted, source, f"{where}.{name}", value, expected)
    return ProfileCell(batch, steps, float(seconds), rounds)


def _require(accepted: bool, source: str, key: str, value: Any, expected: str) -> None:
    if not accepted:
        raise ProfileError(source, key, f"got {shown(value)}", expected)
