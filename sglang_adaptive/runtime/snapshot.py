"""The controller's state as monitoring sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_adaptive.runtime.counters import SwitchRecord


@dataclass(frozen=True, slots=True)
class ControllerSnapshot:
    """A moment's view; nothing in it changes afterwards."""

    policy: str
    current_steps: int
    launch_steps: int
    tiers: tuple[int, ...]
    forced_steps: int | None
    switches: int
    recent_switches: tuple[SwitchRecord, ...]
    rounds_by_tier: Mapping[int, int]
    drafted_by_tier: Mapping[int, int]
    """Draft tokens proposed, by the depth that proposed them."""

    accepted_by_tier: Mapping[int, int]
    """Draft tokens accepted, by the depth that proposed them; bonus tokens not counted."""

    tokens_by_tier: Mapping[int, int]
    """Output tokens, accepted drafts and bonus tokens, by the depth that drafted them."""

    accepted_by_position: tuple[Mapping[str, int], ...]
    """How often each draft position was reached and accepted; see ``accept_counts``."""

    round_times: tuple[Mapping[str, Any], ...]
    """Median seconds of a round by batch size and steps, with the rounds counted; see ``round_times``."""

    degraded: str | None
    """Why the policy was set aside, or None while it decides."""

    profile_saved_at: float | None
    """Unix time at which this server's cost profile was last written to disk; None when there is none."""
    config: Mapping[str, Any] | None
    """The configuration in force, every default spelt out; None for a policy that was not built from one."""

    config_changed: Mapping[str, Any] | None
    """{"time": Unix seconds, "by": who asked} of the latest change; None since start-up."""

    policy_state: Mapping[str, Any]

    startup: Mapping[str, Any]
    """What start-up cost; see ``StartUp``."""

    speedup: Mapping[str, Any] | None = None
    """What the last hour was worth over fixed depths; see ``History.speedup``."""

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
            "round_times": [dict(cell) for cell in self.round_times],
            "degraded": self.degraded is not None,
            "degraded_reason": self.degraded,
            "profile_saved_at": self.profile_saved_at,
            "config": None if self.config is None else dict(self.config),
            "config_changed": None if self.config_changed is None else dict(self.config_changed),
            "startup": dict(self.startup),
            "speedup": None if self.speedup is None else dict(self.speedup),
            **self.policy_state,
        }


def _string_keys(counts: Mapping[int, int]) -> dict[str, int]:
    return {str(tier): counts[tier] for tier in sorted(counts)}
