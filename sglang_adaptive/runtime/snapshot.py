"""The controller's state for monitoring: all of it, and the values for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_adaptive.policy.base import Forecast, Forecasts, Probes, ProbeTotals
from sglang_adaptive.runtime.counters import SwitchRecord

if TYPE_CHECKING:
    from sglang_adaptive.policy.base import AdaptivePolicy
    from sglang_adaptive.runtime.counters import Counters, Region

# The controller's values for metrics; cheaper than a snapshot, because SGLang reads them whenever it logs.


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


@dataclass(frozen=True, slots=True)
class ControllerSnapshot:
    """The controller's state at one moment."""

    policy: str
    current_steps: int
    launch_steps: int
    tiers: tuple[int, ...]
    forced_steps: int | None
    switches: int
    recent_switches: tuple[SwitchRecord, ...]
    rounds_by_tier: Mapping[int, int]
    drafted_by_tier: Mapping[int, int]
    """Drafts proposed, by steps."""

    accepted_by_tier: Mapping[int, int]
    """Drafts accepted, by steps; bonus tokens not counted."""

    tokens_by_tier: Mapping[int, int]
    """Output tokens, accepted drafts and bonus tokens, by steps."""

    accepted_by_position: tuple[Mapping[str, int], ...]
    """How often each position was reached and accepted; see ``Counters.by_position``."""

    accepted_by_length: tuple[Mapping[str, int], ...]
    """Drafts verified and accepted by the requests' lengths; see ``ContextLengths.snapshot``."""

    round_times: tuple[Mapping[str, Any], ...]
    """Median seconds of a round by batch size and steps, with the number of rounds; see ``RoundTimes``."""

    degraded: str | None
    """Why the policy is not asked: it failed, or the audit found a wrong token; None while it is used."""

    degraded_steps: int | None
    """The steps that run instead; None while it is used."""

    profile_saved_at: float | None
    """Unix time in seconds at which this server's cost profile was last written to disk; None when there is none."""
    config: Mapping[str, Any] | None
    """The configuration in force, with every default; None for a policy that was not built from one."""

    config_changed: Mapping[str, Any] | None
    """{"time": Unix seconds, "by": who asked} of the latest change; None since start-up."""

    policy_state: Mapping[str, Any]

    startup: Mapping[str, Any]
    """Seconds and memory of start-up; see ``StartUp``."""

    speedup: Mapping[str, Any] | None = None
    """Speedup of the last hour over fixed steps; see ``History.speedup``."""

    lookups: Mapping[str, Any] | None = None
    """What lookups in the own text would have got accepted of finished requests; see ``LookupCounter.report``."""

    audit: Mapping[str, Any] | None = None
    """What the audit of finished requests has found; None where there is none."""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON builtins; object keys are strings."""
        return {
            "policy": self.policy,
            "active": True,
            "reason": None,
            "current_steps": self.current_steps,
            "launch_steps": self.launch_steps,
            "forced_steps": self.forced_steps,
            "tiers": list(self.tiers),
            "switches": self.switches,
            "recent_switches": [switch.as_dict() for switch in self.recent_switches],
            "rounds_by_tier": _string_keys(self.rounds_by_tier),
            "drafted_by_tier": _string_keys(self.drafted_by_tier),
            "accepted_by_tier": _string_keys(self.accepted_by_tier),
            "tokens_by_tier": _string_keys(self.tokens_by_tier),
            "accepted_by_position": [dict(position) for position in self.accepted_by_position],
            "accepted_by_length": [dict(lengths) for lengths in self.accepted_by_length],
            "round_times": [dict(cell) for cell in self.round_times],
            "degraded": self.degraded is not None,
            "degraded_reason": self.degraded,
            "degraded_steps": self.degraded_steps,
            "profile_saved_at": self.profile_saved_at,
            "config": None if self.config is None else dict(self.config),
            "config_changed": None if self.config_changed is None else dict(self.config_changed),
            "startup": dict(self.startup),
            "speedup": None if self.speedup is None else dict(self.speedup),
            "lookups": None if self.lookups is None else dict(self.lookups),
            "audit": None if self.audit is None else dict(self.audit),
            **self.policy_state,
        }


def _string_keys(counts: Mapping[int, int]) -> dict[str, int]:
    return {str(tier): counts[tier] for tier in sorted(counts)}
