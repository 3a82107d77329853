"""Counts rounds, drafts, tokens and switches since the start of the server, in bounded memory."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.runtime.round_times import RoundTimes

RECENT_SWITCHES = 32
CAUSES = (
    *("acceptance", "batch size", "probe", "lookup", "capacity"),
    *("forced", "released", "configuration", "degraded", "audit"),
)
"""Causes of a switch; "probe" is a switch to a probe's steps or back, "lookup" one to a round that looks its drafts up,
or back, "capacity" one to steps that fit, or back, "audit" one to zero steps for the audit, or back."""

LARGEST_REGION = 10
REGIONS = (
    "1",
    *(f"{1 << (key - 1)}-{(1 << key) - 1}" for key in range(2, LARGEST_REGION)),
    f"{1 << (LARGEST_REGION - 1)}+",
)
"""Names of the batch regions: ranges between powers of two, and all sizes above the last."""


def region_of(batch_size: int) -> str:
    """Return the name of the region of *batch_size*: "1", "2-3", "4-7" ... "256-511", "512+"."""
    return REGIONS[min(max(1, batch_size).bit_length(), LARGEST_REGION) - 1]


@dataclass(frozen=True, slots=True)
class SwitchRecord:
    """One switch."""

    time: float
    """Unix time in seconds."""

    from_steps: int
    to_steps: int
    batch_size: int
    """Requests in the first round after the switch."""

    cause: str
    """One of CAUSES."""

    def as_dict(self) -> dict[str, Any]:
        """Return the record as JSON builtins."""
        return asdict(self)


@dataclass(slots=True)
class Region:
    """Totals of the rounds of one batch region; ``seconds`` and ``tokens`` are of the rounds that could be timed."""

    seconds: float = 0.0
    tokens: int = 0
    batch_size: int = 0
    """Requests of its latest round."""

    steps: int = 0
    """Steps of its latest round."""


class Counters:
    """Totals by steps and by batch region, and the latest switches."""

    def __init__(self) -> None:
        self.switches = 0
        self.switches_by_cause: Counter[str] = Counter()
        self.recent_switches: deque[SwitchRecord] = deque(maxlen=RECENT_SWITCHES)
        self.rounds: Counter[int] = Counter()
        self.regions: dict[str, Region] = {}
        self.latest: Region | None = None
        """The region of the latest round."""
        self.round_times = RoundTimes()
        self.budgets: Counter[tuple[int, int]] = Counter()
        """Rounds with a budget, by steps and budget."""
        self._accept_counts: defaultdict[int, Counter[int]] = defaultdict(Counter)
        """By steps: requests of a round by their number of accepted drafts."""
        self._looked_up: defaultdict[int, Counter[int]] = defaultdict(Counter)
        """The same of rounds that looked their drafts up."""
        self._some: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        """The same of rounds with a budget, by steps and by how many drafts of the request were verified."""

    def add_round(self, observation: RoundObservation) -> None:
        """Count a verified round under the steps that drafted it and under its batch region."""
        self.rounds[observation.steps] += 1
        if observation.budget is None:
            tally = (self._looked_up if observation.looked_up else self._accept_counts)[observation.steps]
            for count in observation.num_correct_drafts_per_req:  # for a few requests quicker than Counter.update
                tally[count] += 1
        else:
            self.budgets[observation.steps, observation.budget] += 1
            for count, verified in zip(observation.num_correct_drafts_per_req, observation.verified, strict=True):
                self._some[observation.steps, verified][count] += 1
        self.round_times.add(observation)
        self._add_to_region(observation)

    def add_switch(self, switch: SwitchRecord) -> None:
        """Count a switch and keep it among the latest ones."""
        self.switches += 1
        self.switches_by_cause[switch.cause] += 1
        self.recent_switches.append(switch)

    def drafted(self) -> dict[int, int]:
        """Return drafts that the target verified, by steps."""
        return self._summed(lambda verified, counts: verified * counts.total())

    def accepted(self) -> dict[int, int]:
        """Return accepted drafts by steps."""
        return self._summed(lambda _, counts: sum(accepted * requests for accepted, requests in counts.items()))

    def wasted(self) -> dict[int, int]:
        """Return drafts that the target verified and rejected, or that came after a rejected one, by steps."""
        return self._summed(
            lambda verified, counts: sum((verified - accepted) * requests for accepted, requests in counts.items())
        )

    def tokens(self) -> dict[int, int]:
        """Return output tokens by steps: accepted drafts, and a bonus token for each request of a round.

        Includes tokens past the end of a request, where a round verified more than the request needed.
        """
        return self._summed(lambda _, counts: sum((accepted + 1) * requests for accepted, requests in counts.items()))

    def verified_per_request(self) -> float | None:
        """Return the mean drafts that were verified of a request in rounds that drafted; None without any."""
        drafting = [(steps, counts.total()) for steps, counts in self._accept_counts.items() if steps]
        drafting += [(verified, counts.total()) for (_, verified), counts in self._some.items()]
        requests = sum(count for _, count in drafting)
        return sum(verified * count for verified, count in drafting) / requests if requests else None

    def by_position(self) -> list[dict[str, int]]:
        """Return for each position, from 1, how often it was reached and how often accepted.

        A position is reached when a draft was verified there and all before it were accepted. Drafts that were looked
        up are not among them.
        """
        tallies = [*self._accept_counts.items(), *((verified, counts) for (_, verified), counts in self._some.items())]
        deepest = max((verified for verified, _ in tallies), default=0)
        reached, accepted = [0] * deepest, [0] * deepest
        for verified, counts in tallies:
            alive = counts.total()
            for index in range(verified):
                reached[index] += alive
                alive -= counts[index]
                accepted[index] += alive
        return [
            {"position": position, "reached": reached[position - 1], "accepted": accepted[position - 1]}
            for position in range(1, deepest + 1)
        ]

    def _summed(self, of: Callable[[int, Counter[int]], int]) -> dict[int, int]:
        """Return by steps the sum of *of*, which gets how many drafts were verified, and requests by accepted ones."""
        found = {steps: of(steps, counts) for steps, counts in self._accept_counts.items()}
        found |= {drafts: of(drafts, counts) for drafts, counts in self._looked_up.items()}
        for (steps, verified), counts in self._some.items():
            found[steps] = found.get(steps, 0) + of(verified, counts)
        return found

    def _add_to_region(self, observation: RoundObservation) -> None:
        name = region_of(observation.batch_size)
        region = self.regions.get(name)
        if region is None:
            region = self.regions[name] = Region()
        region.batch_size, region.steps = observation.batch_size, observation.steps
        if observation.seconds is not None:
            counts = observation.num_correct_drafts_per_req
            region.seconds += observation.seconds
            region.tokens += len(counts) + sum(counts)
        self.latest = region
