"""The controller's values for metrics; cheaper than its snapshot, because SGLang reads them whenever it logs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_adaptive.policy.base import Forecast, ProbeTotals
from sglang_adaptive.runtime.counters import Counters


@dataclass(frozen=True, slots=True)
class MeterReading:
    """Totals since the start of the server, and the current state."""

    time: float
    """Unix time in seconds."""

    current_steps: int
    degraded: bool
    alarms: Collection[str]
    """Names of the alarms now raised."""

    tiers: tuple[int, ...]
    deepest: int
    """The most draft steps with a runtime state; lookup rounds have more drafts."""
    counters: Counters
    forecasts: Mapping[str, Forecast]
    """By batch region, the policy's forecast for a round like the latest; empty without a cost model."""
    speedup: float | None
    """Expected rate over no speculation, for a round like the latest; None without a cost model."""

    acceptance: tuple[float, ...]
    """The policy's estimate by position; empty if it has none."""

    probes: ProbeTotals | None
    profile_saved_at: float | None
    """Unix time in seconds at which this server's cost profile was written to disk; None without one."""

    hour: Mapping[str, Any] | None
    """Speedup of the last hour over fixed steps; see ``History.speedup``."""

    audit: Mapping[str, Any] | None
    """Audit results of finished requests; None without an audit."""
