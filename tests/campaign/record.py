"""Records on disk what each unit tried and lost, so that an interrupted campaign resumes where it stopped."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_adaptive.lab.cpu_engine.server import PortTakenError

ATTEMPTS = 3
"""Runs of a unit whose server loses its port each time."""
MOST_LOSSES = 200
"""Losses of one unit that are written down; all are counted."""


class Lost(Exception):
    """The unit cannot continue, for example because the server died; this is a loss with this message."""


@dataclass
class Unit:
    """One piece of a stage, with its own seed and counts."""

    stage: str
    index: int
    seed: int
    tried: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    """Differences that stock SGLang has as well, by description."""

    lost: Counter[str] = field(default_factory=Counter)
    losses: list[dict[str, str]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.stage}-{self.index:04d}"

    def random(self) -> random.Random:
        """Return the unit's own random generator, the same in every run of this seed."""
        return random.Random(f"{self.seed}/{self.name}")

    def lose(self, what: str, detail: object) -> None:
        self.lost[what] += 1
        if len(self.losses) < MOST_LOSSES:
            self.losses.append({"what": what, "detail": str(detail)[:2000]})

    def check(self, held: bool, what: str, detail: object = "") -> bool:
        """Count one try of *what*, and a loss if not *held*; return *held*."""
        self.tried[what] += 1
        if not held:
            self.lose(what, detail)
        return held


class Record:
    """The units of a campaign in a folder, one JSON file each."""

    def __init__(self, folder: Path, seed: int, resume: bool) -> None:
        """Raises ValueError if *folder* has units and *resume* is false, or if its units have another seed."""
        self.folder, self.seed = folder, seed
        folder.mkdir(parents=True, exist_ok=True)
        self.units: dict[str, Unit] = {}
        for path in sorted(folder.glob("*-[0-9][0-9][0-9][0-9].json")):
            found = json.loads(path.read_text())
            unit = Unit(**{**found, **{name: Counter(found[name]) for name in ("tried", "known", "lost")}})
            if not resume:
                raise ValueError(
                    f"{folder} holds a campaign already; give --resume to go on with it, or another folder"
                )
            if unit.seed != seed:
                raise ValueError(f"{path} is of seed {unit.seed}, not {seed}")
            self.units[unit.name] = unit

    def done(self, stage: str) -> int:
        return sum(unit.stage == stage for unit in self.units.values())

    def run(self, stage: str, act: Callable[[Unit], None]) -> Unit:
        """Run the next unit of *stage* and write it down; an exception counts as a loss.

        A unit whose server lost its port to another process runs again: its servers get other ports.
        """
        begin = time.monotonic()
        for left in reversed(range(ATTEMPTS)):
            unit = Unit(stage, self.done(stage), self.seed)
            try:
                act(unit)
            except PortTakenError as taken:
                if left:
                    continue
                unit.lose("the unit was cut off", f"{ATTEMPTS} times: {taken}")
            except Lost as lost:
                unit.lose("the unit was given up", lost)
            except Exception as error:
                unit.lose("the unit was cut off", f"{type(error).__name__}: {error}")
            break
        unit.seconds = time.monotonic() - begin
        self.units[unit.name] = unit
        part = self.folder / f"{unit.name}.part"
        part.write_text(json.dumps(vars(unit), indent=1) + "\n")
        part.replace(part.with_suffix(".json"))
        return unit
