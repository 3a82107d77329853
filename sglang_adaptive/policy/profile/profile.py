"""A cost profile: the seconds of one decode round by batch size and draft steps, and what they hold for.

Pure data. ``policy.profile.profile_json`` reads its JSON, ``runtime.profile_store`` keeps it on disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

FORMAT = "sglang-adaptive cost profile"
VERSION = 2
"""Of profiles with budgets; those without are written as version 1, which earlier releases read."""
MAX_CELLS = 4096
KEY_TEXTS = ("target_model", "draft_model", "gpu_name", "attention_backend")
KEY_COUNTS = ("gpu_count", "tp_size")
KEY_MAPS = ("dtypes", "versions")


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """What a round time depends on; profiles are exchanged only between equal keys."""

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
        """Return the key as JSON builtins, maps sorted."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in (*KEY_TEXTS, *KEY_COUNTS)}
        return {**plain, **{name: dict(sorted(getattr(self, name).items())) for name in KEY_MAPS}}

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
    """Rounds behind the figure; None when they were not counted."""
    budget: int | None = None
    """Mean drafts verified of a request where that was fewer than ``steps``; None where all were."""

    @property
    def place(self) -> tuple[int, int, int]:
        """Batch size, steps, and budget: the steps again without one."""
        return self.batch_size, self.steps, self.steps if self.budget is None else self.budget

    def as_dict(self) -> dict[str, Any]:
        """Return the cell as JSON builtins; "budget" only where there is one."""
        cell = {"batch_size": self.batch_size, "steps": self.steps, "seconds": self.seconds, "rounds": self.rounds}
        return cell if self.budget is None else {**cell, "budget": self.budget}


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Cells of one key, ascending by batch size and steps; ``measured`` says how, in words."""

    key: ProfileKey
    cells: tuple[ProfileCell, ...]
    measured: str = ""

    def merged(self, other: CostProfile) -> CostProfile:
        """Return this profile with the cells of *other* put where this one has none."""
        own = {c.place: c for c in self.cells}
        theirs = {c.place: c for c in other.cells}
        return CostProfile(self.key, ordered((theirs | own).values()), self.measured or other.measured)

    def as_dict(self) -> dict[str, Any]:
        """Return the profile as JSON builtins, in the layout that ``profile_json`` reads."""
        return {
            "format": FORMAT,
            "version": VERSION if any(cell.budget is not None for cell in self.cells) else 1,
            "key": self.key.as_dict(),
            "measured": self.measured,
            "cells": [cell.as_dict() for cell in self.cells],
        }

    def dumps(self) -> str:
        """Return the JSON text, one cell a line."""
        top = self.as_dict()
        rows = ",\n".join("  " + json.dumps(cell) for cell in top.pop("cells"))
        head = json.dumps(top, indent=1)[:-2]
        return f'{head},\n "cells": [\n{rows}\n ]\n}}\n' if rows else f'{head},\n "cells": []\n}}\n'


def ordered(cells: Iterable[ProfileCell]) -> tuple[ProfileCell, ...]:
    """Return *cells* ascending by batch size, steps and budget; at most ``MAX_CELLS``, smallest batches first."""
    return tuple(sorted(cells, key=lambda cell: cell.place)[:MAX_CELLS])
