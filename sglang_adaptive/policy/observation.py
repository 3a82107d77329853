"""What a policy observes of one decode round, and how rounds without drafts are timed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sglang_adaptive.policy.choice import FORCED, Choice, Source


class Lookup(NamedTuple):
    """The lookup of one request in a round, whether the round verified its drafts or not."""

    match: int
    """Matching tokens before the drafts when the round began; 0 if nothing was found."""
    agreed: int
    """Leading drafts that equal the round's own tokens, as far as the round went."""
    now: int
    """Matching tokens before the drafts of the next round."""
    remembered: int = 0
    """1 if this round's drafts are from other requests' texts, else 0."""
    next_remembered: int = 0
    """The same of the next round's."""


@dataclass(slots=True)
class RoundObservation:
    """One verified decode round; not frozen, because a frozen instance takes three times as long to create.

    With overlap scheduling the result arrives one round late, and the next round may have been chosen since.
    """

    choice: Choice
    """What the round did."""
    num_correct_drafts_per_req: Sequence[int]
    """Accepted draft tokens of each request without the bonus token, each in ``0..steps``."""
    batch_size: int
    """Requests in the round; if ranks run rounds together, those of the rank with the most."""
    seconds: float | None = None
    """Wall time of the round; None when not comparable (mixed with prefill, after a switch or idling)."""
    shadow_accepts: Sequence[int] = ()
    """At 0 steps: 1 for each request whose token the draft would have drafted, else 0; unknown ones are left out."""
    requests: Sequence[Hashable] = ()
    """Request ids, in the order of the counts; empty when unknown."""
    extended: bool = True
    """At 0 steps: whether the round ends a cycle of zero-step rounds by running the draft extend for the whole cycle.

    Also True without cycles, when every round runs the extend or none does.
    """
    lookups: Sequence[Lookup] = ()
    """In the order of the counts; empty if lookups were not tracked."""

    @property
    def steps(self) -> int:
        """Draft steps of the round, 0 without drafting; for a lookup round, its number of drafts."""
        return self.choice.steps

    def tally(self) -> dict[int, int]:
        """Return the number of requests by accepted drafts."""
        counts = self.num_correct_drafts_per_req
        return {count: counts.count(count) for count in set(counts)}

    @property
    def looked_up(self) -> bool:
        """Whether the drafts were looked up instead of drafted."""
        return self.choice.source is Source.LOOKUP

    @property
    def chosen(self) -> bool:
        """Whether the policy chose the steps, and no operator held them."""
        return self.choice.why != FORCED


class ZeroCycle:
    """Averages the time of zero-step rounds over a cycle, which ends with a draft extend.

    The round that runs the extend takes longer than the others. The rounds between two of them vary with
    ``zero_step_extend_every``, the batch, and how many shadow drafts the policy wants. So a cycle ends where the extend
    ran (``RoundObservation.extended``), and its mean is the time of a round.
    """

    __slots__ = ("_rounds", "_seconds", "_whole")

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._rounds = 0
        """Rounds of the current cycle, including untimed ones."""
        self._whole = False
        """Whether its start was observed."""

    def add(self, seconds: float | None, extended: bool) -> tuple[float, int] | None:
        """Add a round of *seconds*, None if it could not be timed; *extended* says whether it ran the extend.

        If it completes a cycle, return the cycle's mean in seconds per round and its number of timed rounds; otherwise,
        or if less than half of the cycle is known, None. Untimed rounds count as the median of the others.
        """
        self._rounds += 1
        if seconds is not None:
            self._seconds.append(seconds)
        if not extended:
            return None
        timed, rounds, whole = self._seconds, self._rounds, self._whole
        self.begin()
        if not whole or seconds is None or 2 * len(timed) < rounds:
            return None
        usual = _lower_median(timed)
        return (sum(timed) + (rounds - len(timed)) * usual) / rounds, len(timed)

    def part(self) -> float | None:
        """Return the usual seconds of a round of the current, incomplete cycle; None if none was timed."""
        return _lower_median(self._seconds) if self._seconds else None

    def begin(self) -> None:
        """Begin a cycle: the draft has just run and has nothing to catch up on."""
        self._seconds, self._rounds, self._whole = [], 0, True

    def restart(self) -> None:
        """Treat the current cycle's rounds as untimed, because they had another batch size."""
        self._seconds = []


def _lower_median(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]
