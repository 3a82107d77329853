"""The controller's values for metrics; cheaper than a snapshot, because SGLang reads them whenever it logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_adaptive.policy.base import Forecast, Forecasts, Probes, ProbeTotals

if TYPE_CHECKING:
    from sglang_adaptive.policy.base import AdaptivePolicy
    from sglang_adaptive.runtime.counters import Counters, Region


@dataclass(frozen=True, slots=True)
class RegionReading:
    """Timed rounds of one batch region, and the rate that the policy expects of a round like its latest."""

    tokens: int
    seconds: float
    expected_tokens_per_second: float | None
    """None without a cost model."""


@dataclass(frozen=True, slots=True)
class MeterReading:
    """Totals since the start of the server, and the current state."""

    time: float
    """Unix time in seconds."""

    current_steps: int
    degraded: bool
    tiers: tuple[int, ...]
    deepest: int
    """The most draft steps with a runtime state: rounds that look their drafts up have more drafts."""
    counters: Counters
    regions: Mapping[str, RegionReading]
    speedup: float | None
    """Expected rate over no speculation, for a round like the latest; None without a cost model."""

    acceptance: tuple[float, ...]
    """The policy's estimate by position; empty when it has none."""

    probes: ProbeTotals | None
    profile_saved_at: float | None
    """Unix time in seconds at which this server's cost profile was written to disk; None when there is none."""

    hour: Mapping[str, Any] | None = None
    """Speedup of the last hour over fixed steps; see ``History.speedup``."""

    verify_budget: Mapping[str, Any] | None = None
    """As ``budget_report`` has it; None where rounds may have no budget."""

    lookups: Mapping[str, Any] | None = None
    """As ``LookupCounter.report`` has it; None where nobody counts lookups."""

    audit: Mapping[str, Any] | None = None
    """What the audit of finished requests has found; None where there is none."""


def read_meters(
    policy: AdaptivePolicy | None,
    counters: Counters,
    *,
    time: float,
    current_steps: int,
    tiers: tuple[int, ...],
    deepest: int,
    profile_saved_at: float | None,
    hour: Mapping[str, Any] | None = None,
    verify_budget: Mapping[str, Any] | None = None,
    lookups: Mapping[str, Any] | None = None,
    audit: Mapping[str, Any] | None = None,
) -> MeterReading:
    """Read *counters* and *policy*, which is None after it failed."""
    forecaster = policy if isinstance(policy, Forecasts) else None
    latest = _forecast(forecaster, counters.latest)
    return MeterReading(
        time=time,
        current_steps=current_steps,
        degraded=policy is None,
        tiers=tiers,
        deepest=deepest,
        counters=counters,
        regions={name: _region(forecaster, region) for name, region in counters.regions.items()},
        speedup=None if latest is None else latest.speedup,
        acceptance=() if forecaster is None else tuple(forecaster.acceptance_by_position()),
        probes=policy.probe_totals() if isinstance(policy, Probes) else None,
        profile_saved_at=profile_saved_at,
        hour=hour,
        verify_budget=verify_budget,
        lookups=lookups,
        audit=audit,
    )


def _region(forecaster: Forecasts | None, region: Region) -> RegionReading:
    expected = _forecast(forecaster, region)
    return RegionReading(region.tokens, region.seconds, None if expected is None else expected.tokens_per_second)


def _forecast(forecaster: Forecasts | None, region: Region | None) -> Forecast | None:
    if forecaster is None or region is None:
        return None
    return forecaster.forecast(region.batch_size, region.steps)
