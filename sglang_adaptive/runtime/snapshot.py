"""The controller's state for monitoring: all of it, and the values for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from sglang_adaptive.policy.base import Forecast, Forecasts, ProbeTotals
from sglang_adaptive.runtime.counters import SwitchRecord

if TYPE_CHECKING:
    from sglang_adaptive.runtime.counters import Counters, Region

# The controller's values for metrics; cheaper than a snapshot, because SGLang reads them whenever it logs.


@dataclass(frozen=True, slots=True)
class RegionReading:
    """Timed rounds of one batch region, and the rate that the policy expects of a round like its latest."""

    tokens: int
    seconds: float
    expected_tokens_per_second: float | None
    """None without a cost model."""

    @classmethod
    def of(cls, region: Region, policy: Forecasts | None) -> RegionReading:
        """Return the reading of *region*."""
        expected = forecast(policy, region)
        return cls(region.tokens, region.seconds, None if expected is None else expected.tokens_per_second)


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

    hour: Mapping[str, Any] | None
    """Speedup of the last hour over fixed steps; see ``History.speedup``."""

    verify_budget: Mapping[str, Any] | None
    """As ``budget_report`` has it; None where rounds may have no budget."""

    lookups: Mapping[str, Any] | None
    """As ``LookupCounter.report`` has it; None where nobody counts lookups."""

    audit: Mapping[str, Any] | None
    """What the audit of finished requests has found; None where there is none."""


def forecast(policy: Forecasts | None, region: Region | None) -> Forecast | None:
    """Return what *policy* expects of a round like the latest one of *region*; None where either is None."""
    return None if policy is None or region is None else policy.forecast(region.batch_size, region.steps)


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
        found: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            found[field.name] = list(value) if isinstance(value, tuple) else value
        for name in _BY_STEPS:
            found[name] = {str(steps): count for steps, count in sorted(found[name].items())}
        found["recent_switches"] = [switch.as_dict() for switch in self.recent_switches]
        found |= {"degraded": self.degraded is not None, "degraded_reason": self.degraded}
        policy_state = found.pop("policy_state")
        return {"active": True, "reason": None, **found, **policy_state}


_BY_STEPS = ("rounds_by_tier", "drafted_by_tier", "accepted_by_tier", "tokens_by_tier")
