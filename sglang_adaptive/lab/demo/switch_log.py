"""Collects the policy's switches while the server still lists them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sglang_adaptive.lab.demo.results import Switch

READ_SECONDS = 2.0
"""Seconds between two reads; the server lists its latest switches only, and a read costs it some milliseconds."""

_OURS = ("forced", "released")
"""Causes of switches that the demo requested; they are not the policy's."""


class SwitchLog:
    """Switches since the state *before*, which is the `adaptive` block of /server_info; None without one."""

    def __init__(self, before: dict[str, Any] | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.switches: list[Switch] = []
        self.unseen = 0
        """Switches that the server dropped from its list between two reads."""
        self._count = 0 if before is None else before["switches"]
        self._clock = clock
        self._read_at = clock()

    def is_due(self) -> bool:
        """Return whether the next read is due."""
        return self._clock() - self._read_at >= READ_SECONDS

    def read(self, state: dict[str, Any] | None) -> None:
        """Add the new switches of *state*."""
        self._read_at = self._clock()
        if state is None:
            return
        new = state["switches"] - self._count
        self._count = state["switches"]
        seen = state["recent_switches"][-new:] if new else []
        self.unseen += new - len(seen)
        decided = (entry for entry in seen if entry["cause"] not in _OURS)
        self.switches += [Switch(entry["time"], entry["from_steps"], entry["to_steps"]) for entry in decided]
