"""What metrics report of a controller: cheaper than a snapshot, because it is read whenever SGLang logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglang_adaptive.policy.monitored import Forecast, Forecasts, Probes, ProbeTotals

if TYPE_CHECKING:
    from sglang_adaptive.policy.base import AdaptivePolicy
    from sglang_adaptive.runtime.ledger import Ledger
    from sglang_adaptive.runtime.meters import Meters, Region


@dataclass(frozen=True, slots=True)
class RegionReading:
    """One batch region: its timed rounds so far, and what the policy expects of a round like its latest."""

    tokens: int
    seconds: float
    expected_tokens_per_second: float | None
    """None without a cost model."""


@dataclass(frozen=True, slots=True)
class MeterReading:
    """Totals since the server started, under the names of ``ControllerSnapshot``, and the state of this moment."""

    current_steps: int
    degraded: bool
    tiers: tuple[int, ...]
    rounds_by_tier: Mapping[int, int]
    drafted_by_tier: Mapping[int, int]
    accepted_by_tier: Mapping[int, int]
    tokens_by_tier: Mapping[int, int]
    accepted_by_position: Sequence[Mapping[str, int]]
    switches_by_cause: Mapping[str, int]
    regions: Mapping[str, RegionReading]
    speedup: float | None
    """Expected rate over no speculation, for a round like the latest; None when the policy cannot say."""

    acceptance: tuple[float, ...]
    """The policy's estimate by position; empty when it has none."""

    probes: ProbeTotals | None
    profile_saved_at: float | None
    """Unix time at which this server's cost profile was written to disk; None when there is none."""


def read_meters(
    policy: AdaptivePolicy | None,
    ledger: Ledger,
    meters: Meters,
    *,
    current_steps: int,
    tiers: tuple[int, ...],
    profile_saved_at: float | None,
) -> MeterReading:
    """Read *meters* and *ledger*; *policy* None is one that was set aside, and is not asked anything any more."""
    forecaster = policy if isinstance(policy, Forecasts) else None
    latest = _forecast(forecaster, meters.latest)
    return MeterReading(
        current_steps=current_steps,
        degraded=policy is None,
        tiers=tiers,
        rounds_by_tier=ledger.rounds_by_tier,
        drafted_by_tier=ledger.drafted_by_tier,
        accepted_by_tier=ledger.accepted_by_tier,
        tokens_by_tier=ledger.accept_counts.tokens(),
        accepted_by_position=ledger.accept_counts.by_position(),
        switches_by_cause=meters.switches_by_cause,
        regions={name: _region(forecaster, region) for name, region in meters.regions.items()},
        speedup=None if latest is None else latest.speedup,
        acceptance=() if forecaster is None else tuple(forecaster.acceptance_by_position()),
        probes=policy.probe_totals() if isinstance(policy, Probes) else None,
        profile_saved_at=profile_saved_at,
    )


def _region(forecaster: Forecasts | None, region: Region) -> RegionReading:
    expected = _forecast(forecaster, region)
    return RegionReading(region.tokens, region.seconds, None if expected is None else expected.tokens_per_second)


def _forecast(forecaster: Forecasts | None, region: Region | None) -> Forecast | None:
    if forecaster is None or region is None:
        return None
    return forecaster.forecast(region.batch_size, region.steps)
