"""Time that a stage has used, over all calls that worked on it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path


class Clock:
    """The time of one stage; its seconds are stored in *file* for the next call.

    A stage is `over` after *minutes*. A call is `leaving` at *leave_at*, a reading of *now*, over or not.
    """

    def __init__(
        self,
        file: Path,
        stage: str,
        minutes: float,
        leave_at: float = float("inf"),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file, self._stage, self._minutes, self._leave_at, self._now = file, stage, minutes, leave_at, now
        self._before = self._kept().get(stage, 0.0)
        self._start = now()

    def used(self) -> float:
        """Return the stage's seconds so far."""
        return self._before + self._now() - self._start

    def share(self) -> float:
        """Return the share of the stage's time that is used; above 1 once it is over."""
        return self.used() / max(60 * self._minutes, 1e-9)

    def over(self) -> bool:
        return self.share() >= 1

    def leaving(self) -> bool:
        return self._now() >= self._leave_at

    def stop(self) -> bool:
        return self.over() or self.leaving()

    def keep(self, seconds: float | None = None) -> None:
        """Store the seconds used: *seconds*, by default those so far."""
        kept = self._kept() | {self._stage: self.used() if seconds is None else seconds}
        partial = self._file.with_name(self._file.name + ".part")
        partial.write_text(json.dumps(kept) + "\n", encoding="utf-8")
        os.replace(partial, self._file)

    def _kept(self) -> dict[str, float]:
        return json.loads(self._file.read_text(encoding="utf-8")) if self._file.is_file() else {}
