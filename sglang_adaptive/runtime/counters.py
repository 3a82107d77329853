"""Counts rounds, drafts, tokens and switches since the start of the server, in bounded memory."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_adaptive.policy.choice import FORCED, Choice
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.runtime.round_times import RoundTimes


@dataclass(slots=True)
class RoundMix:
    """Sums over verified rounds with the same ``batch_size`` and ``steps``."""

    batch_size: int
    steps: int
    chosen: bool
    """Whether the policy chose the steps; False while an operator holds them."""
    rounds: int = 0
    timed: int = 0
    """Rounds with a measured time; ``timed_seconds`` is their sum."""
    timed_seconds: float = 0.0
    accepted: Counter[int] = field(default_factory=Counter)
    """Requests by accepted drafts."""

    def add(self, observation: RoundObservation) -> None:
        self.rounds += 1
        for count, requests in observation.tally().items():
            self.accepted[count] += requests
        if observation.seconds is not None:
            self.timed += 1
            self.timed_seconds += observation.seconds

    @property
    def requests(self) -> int:
        """Requests of all rounds; each got one bonus token per round."""
        return self.accepted.total()

    @property
    def tokens(self) -> int:
        """Output tokens of all rounds, bonus tokens included."""
        return sum((count + 1) * requests for count, requests in self.accepted.items())

    def seconds(self, of_a_round: float) -> float:
        """Return the seconds of all rounds; untimed ones count as the mean of the others, or else *of_a_round*."""
        mean = self.timed_seconds / self.timed if self.timed else of_a_round
        return self.timed_seconds + (self.rounds - self.timed) * mean

    def tokens_at(self, steps: int, expected: Sequence[float]) -> float:
        """Return the tokens that as many rounds of *steps* would have yielded for the same requests.

        Up to the drafted steps this follows from the accepted drafts. Beyond them, a request with all drafts accepted
        continues as *expected*: tokens per request in a round, indexed by steps from 0.
        """
        certain = sum((min(count, steps) + 1) * requests for count, requests in self.accepted.items())
        if steps <= self.steps:
            return float(certain)
        reach = expected[self.steps] - expected[self.steps - 1] if self.steps else 1.0
        more = (expected[steps] - expected[self.steps]) / reach if reach > 0.0 else 0.0
        return certain + self.accepted[self.steps] * more


SHORTEST = 512
"""End of the first bin, in tokens; each further bin ends at twice as many, and the last has no end."""
LENGTH_BINS = 8
CUT_EVERY = 8
"""One in this many rounds is counted: counting 64 requests takes tens of microseconds."""


class ContextLengths:
    """Requests of rounds that drafted, with their drafts and accepted drafts, by request length.

    A draft trained on short texts does worse on long ones.
    """

    def __init__(self) -> None:
        self._rounds = 0
        self._requests, self._drafted, self._accepted = [0] * LENGTH_BINS, [0] * LENGTH_BINS, [0] * LENGTH_BINS

    @property
    def counts_next(self) -> bool:
        """Whether the next round that drafted is counted, if lengths are given."""
        return self._rounds % CUT_EVERY == 0

    def add(self, lengths: Sequence[int], accepted: Sequence[int], steps: int) -> None:
        """Count or skip a round of *steps*, given each request's length in tokens and accepted drafts."""
        counts = self.counts_next and lengths
        self._rounds += 1
        if not counts:
            return
        for length, right in zip(lengths, accepted, strict=True):
            at = min((length // SHORTEST).bit_length(), LENGTH_BINS - 1)
            self._requests[at] += 1
            self._drafted[at] += steps
            self._accepted[at] += right

    def as_list(self) -> list[dict[str, int]]:
        """Return JSON builtins by bin: ``from`` and, except for the last, ``to`` in tokens, and the counts."""
        starts = [0, *(SHORTEST << at for at in range(LENGTH_BINS - 1))]
        counts = zip(starts, self._requests, self._drafted, self._accepted, strict=True)
        bins = [{"from": start, "requests": n, "drafted": d, "accepted": a} for start, n, d, a in counts]
        return [{**one, "to": end} for one, end in zip(bins, starts[1:], strict=False)] + bins[-1:]


RECENT_SWITCHES = 32
CAUSES = (
    *("acceptance", "batch size", "probe", "lookup", "capacity"),
    *("forced", "released", "configuration", "degraded", "audit"),
)
"""Causes of a switch. Four include the switch back: "probe" to a probe's steps, "lookup" to a lookup round, "capacity"
to steps that fit, and "audit" to zero steps for the audit."""
_OVERRULES = frozenset({FORCED, "degraded", "audit", "capacity"})
"""Why something else runs than the policy's choice."""
_CAUSE_AFTER = {FORCED: "released", **{why: why for why in ("lookup", "capacity", "audit", "configuration")}}
"""The cause of a switch to the policy's choice, by why the round before ran, or what ended it."""


def cause_of(before: Choice, now: Choice, alike: bool) -> str:
    """Return the cause of a switch; *alike* says whether both rounds have the same batch size."""
    if now.why in _OVERRULES and before.why != "capacity":
        return now.why
    return _CAUSE_AFTER.get(before.why) or now.why or ("acceptance" if alike else "batch size")


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


@dataclass(slots=True)
class Region:
    """Totals of one batch region; ``seconds`` and ``tokens`` include only timed rounds."""

    seconds: float = 0.0
    tokens: int = 0
    batch_size: int = 0
    """Requests of its latest round whose drafts were not looked up; 0 before it."""
    steps: int = 0
    """Steps of that round."""


class Counters:
    """Totals by steps and by batch region, and the latest switches."""

    def __init__(self) -> None:
        self.switches = 0
        self.switches_by_cause: Counter[str] = Counter()
        self.recent_switches: deque[dict[str, Any]] = deque(maxlen=RECENT_SWITCHES)
        """As JSON, oldest first; docs/json.md lists the fields."""
        self.rounds: Counter[int] = Counter()
        self.regions: dict[str, Region] = {}
        self.latest = ""
        """The region of the latest round; empty before the first one."""
        self.round_times = RoundTimes()
        self._accepted: defaultdict[tuple[int, bool], Counter[int]] = defaultdict(Counter)
        """By steps, and whether the drafts were looked up: requests by accepted drafts."""

    def add_round(self, observation: RoundObservation) -> None:
        """Count a verified round under the steps that drafted it and under its batch region."""
        steps = observation.steps
        self.rounds[steps] += 1
        accepted = self._accepted[steps, observation.looked_up]
        for count, requests in observation.tally().items():
            accepted[count] += requests
        self.round_times.add(observation)
        self.latest = region_of(observation.batch_size)
        region = self.regions.setdefault(self.latest, Region())
        if not observation.looked_up:
            region.batch_size, region.steps = observation.batch_size, observation.steps
        if observation.seconds is not None:
            counts = observation.num_correct_drafts_per_req
            region.seconds += observation.seconds
            region.tokens += len(counts) + sum(counts)

    def add_switch(self, time: float, from_steps: int, to_steps: int, batch_size: int, cause: str) -> None:
        """Count a switch at *time*, in Unix seconds, before a round of *batch_size*; *cause* is one of CAUSES."""
        self.switches += 1
        self.switches_by_cause[cause] += 1
        steps = {"from_steps": from_steps, "to_steps": to_steps}
        self.recent_switches.append({"time": time, **steps, "batch_size": batch_size, "cause": cause})

    def drafted(self) -> dict[int, int]:
        """Return verified drafts by steps."""
        return self._summed(lambda steps, counts: steps * counts.total())

    def accepted(self) -> dict[int, int]:
        """Return accepted drafts by steps."""
        return self._summed(lambda _, counts: sum(accepted * requests for accepted, requests in counts.items()))

    def wasted(self) -> dict[int, int]:
        """Return verified drafts that were rejected or came after a rejected one, by steps."""
        accepted = self.accepted()
        return {steps: count - accepted[steps] for steps, count in self.drafted().items()}

    def tokens(self) -> dict[int, int]:
        """Return output tokens by steps: accepted drafts, and one bonus token per request and round.

        Includes tokens past the end of a request, if a round verified more than the request needed.
        """
        return self._summed(lambda _, counts: sum((accepted + 1) * requests for accepted, requests in counts.items()))

    def by_position(self) -> list[dict[str, int]]:
        """Return for each position, from 1, how often it was reached and how often accepted.

        A position is reached if a draft was verified there and all before it were accepted. Lookup drafts are excluded.
        """
        drafted = [(steps, counts) for (steps, looked_up), counts in self._accepted.items() if not looked_up]
        deepest = max((steps for steps, _ in drafted), default=0)
        reached, accepted = [0] * deepest, [0] * deepest
        for steps, counts in drafted:
            alive = counts.total()
            for index in range(steps):
                reached[index] += alive
                alive -= counts[index]
                accepted[index] += alive
        found = enumerate(zip(reached, accepted, strict=True), start=1)
        return [{"position": at, "reached": came, "accepted": stayed} for at, (came, stayed) in found]

    def _summed(self, of: Callable[[int, Counter[int]], int]) -> dict[int, int]:
        """Return the result of *of* by steps; *of* gets the steps, and requests by accepted drafts."""
        found: Counter[int] = Counter()
        for (steps, _), counts in self._accepted.items():
            found[steps] += of(steps, counts)
        return found
