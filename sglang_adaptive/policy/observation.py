"""What a policy observes of one decode round, and how rounds without drafts are timed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sglang_adaptive.policy.choice import FORCED, Choice, Source

SHORTEST, LONGEST = 2, 64
"""Tokens that must match in a lookup, and the most that are compared."""
DRAFTS = 32
"""Drafts of a lookup."""


class Lookup(NamedTuple):
    """The lookup of one request in a round, whether the round verified its drafts or not.

    The drafts are copied from an earlier place in the request's own text, its prompt and output. Token p is the last
    known token. The lookup finds the earlier token q for which the tokens up to q match those up to p the furthest
    back, over at least SHORTEST tokens and compared over LONGEST; of several such q, it takes the latest. The drafts
    are the DRAFTS tokens after q. If they reach p, they start again after q, as in text with a period of p - q tokens.

    Other texts may be searched as well, its sources. There q may be any token but the last; of equal matches the own
    text counts, then the first source. Drafts end with their source.
    """

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
    num_correct_drafts_per_req: Sequence[int] = ()
    """Accepted draft tokens of each request without the bonus token, each in ``0..steps``."""
    batch_size: int = 0
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


@dataclass(slots=True)
class RoundNote(RoundObservation):
    """One round. With overlap scheduling the live steps may have changed when its result arrives.

    The observation's fields are filled in one by one, the accept counts last.
    """

    lengths: Sequence[int] = ()
    """Sequence lengths of the requests before the round, in the order of the accept counts; empty when unknown."""
    since_last: float | None = None
    """Seconds since the result before it arrived, also where they are not the round's ``seconds``; None if unknown."""
    audit: bool = False
    """Whether all its requests are decoded again for the audit; nothing is counted or learned from it."""
    largest_batch: int | None = None
    """The largest batch of any rank if ranks run rounds together; None if this rank runs rounds alone."""
    arriving: list[Callable[[RoundNote, Any], None]] = field(default_factory=list)
    """Callbacks that fill in fields from numbers that the device sends with the result, called once it has arrived."""

    def arrived(self, result: Any) -> None:
        """Fill in fields from *result*, which is now on the host."""
        for fill in self.arriving:
            fill(self, result)
        self.arriving.clear()


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
