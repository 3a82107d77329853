"""What has been decided and drafted so far, in bounded memory."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import asdict, dataclass
from typing import Any

from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.runtime.accept_counts import AcceptCounts
from sglang_adaptive.runtime.round_times import RoundTimes

RECENT_SWITCHES = 32
CAUSES = ("acceptance", "batch size", "probe", "forced", "released", "configuration", "degraded")
"""Why the live depth changes; "probe" is the way into a probe and the way back."""


@dataclass(frozen=True, slots=True)
class SwitchRecord:
    """One change of the live depth."""

    time: float
    """Unix time in seconds."""

    from_steps: int
    to_steps: int
    batch_size: int
    """Requests in the round that the switch was made for."""

    cause: str
    """One of CAUSES."""

    def as_dict(self) -> dict[str, Any]:
        """Return the record as JSON builtins."""
        return asdict(self)


class Ledger:
    """Counts of rounds and tokens by the depth that drafted them, and the latest switches."""

    def __init__(self) -> None:
        self.switches = 0
        self.recent_switches: deque[SwitchRecord] = deque(maxlen=RECENT_SWITCHES)
        self.rounds_by_tier: Counter[int] = Counter()
        self.drafted_by_tier: Counter[int] = Counter()
        self.accepted_by_tier: Counter[int] = Counter()
        self.accept_counts = AcceptCounts()
        self.round_times = RoundTimes()

    def credit(self, observation: RoundObservation) -> None:
        """Count a verified round under the depth that drafted it."""
        requests = len(observation.num_correct_drafts_per_req)
        self.rounds_by_tier[observation.steps] += 1
        self.drafted_by_tier[observation.steps] += observation.steps * requests
        self.accepted_by_tier[observation.steps] += sum(observation.num_correct_drafts_per_req)
        self.accept_counts.add(observation)
        self.round_times.add(observation)

    def record(self, switch: SwitchRecord) -> None:
        """Count a switch and keep it among the latest."""
        self.switches += 1
        self.recent_switches.append(switch)
