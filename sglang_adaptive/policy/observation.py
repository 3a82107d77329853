"""What a policy is told about one decode round, and how rounds without drafts are timed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Shape = tuple[int, int]
"""Of a round: its draft steps, and how many drafts of a request are verified, on average.

The second is the round's verify budget; without one all drafts are verified, and it is the steps again. A round of
lookups has no draft steps, and verifies the drafts that were looked up.
"""


class Lookup(NamedTuple):
    """What a round says of the drafts looked up in one request's text, whether it verified them or not."""

    match: int
    """Tokens that agreed before the drafts when the round began; 0 where nothing was found."""
    agreed: int
    """Drafts that were the round's own tokens, from the first one on, as far as the round went."""
    now: int
    """Tokens that agree before the drafts of the next round."""


@dataclass(frozen=True, slots=True)
class BudgetEvidence:
    """What smaller budgets would have kept of a round's drafts: sums over its requests, of the same round.

    A budget of ``b`` verifies the likeliest ``b`` drafts a request of the whole batch, by the draft's own chances. What
    smaller budgets keep is part of what larger ones keep, so one round says it of all budgets below its own.
    """

    steps: int
    """The drafts that it is of: the first so many of each request; at most those of the round."""
    whole: int
    """Accepted of all of them."""
    ranked: Mapping[int, int]
    """By budget, accepted of those that it keeps."""
    uniform: Mapping[int, int]
    """By budget, accepted of the first so many drafts of each request."""


@dataclass(slots=True)
class RoundObservation:
    """One verified decode round, as it reaches the CPU; not frozen because that takes three times as long to make.

    With overlap scheduling the result arrives one round late, so ``steps`` is the depth that drafted the
    round; the live depth may have changed since.
    """

    steps: int
    """Draft steps of the round, 0 for a round without drafting; of a round of lookups its drafts."""
    num_correct_drafts_per_req: Sequence[int]
    """Accepted draft tokens of each request, the bonus token not counted; each in ``0..steps``."""
    batch_size: int
    """Requests in the round; of ranks that run their rounds together, those of the rank that has most."""
    seconds: float | None = None
    """Wall time of the round; None when not comparable (mixed with prefill, after a switch or idling)."""
    context_tokens: int | None = None
    """Sum of the requests' sequence lengths before the round, in tokens; None when unknown."""
    chosen: bool = True
    """Whether the policy chose the depth; False while an operator holds it."""
    shadow_accepts: Sequence[int] = ()
    """At 0 steps: 1 for each request whose token the draft would have drafted, 0 for one that it would not.

    Requests of which that is not known are left out.
    """
    requests: Sequence[Hashable] = ()
    """Ids of the requests, in the order of the counts; empty when unknown."""
    extended: bool = True
    """At 0 steps: whether the round ends a cycle of zero-step rounds, by running the draft's extend for all of it.

    True as well where there are no cycles: where every round runs it, or none does.
    """
    budget: int | None = None
    """Mean drafts verified of a request where that was a budget below ``steps``; None where all were verified."""
    verified: Sequence[int] = ()
    """Of a round with a budget: how many drafts of each request were verified."""
    completed: Sequence[int] = ()
    """Of a round with a budget: what each request would have accepted of all its drafts.

    Where drafts that nobody verified follow accepted ones, their chances are drawn. Empty where that is not known.
    """
    evidence: BudgetEvidence | None = None
    """None in rounds that were not looked at."""
    looked_up: bool = False
    """Whether the drafts were looked up, and not drafted."""
    lookups: Sequence[Lookup] = ()
    """In the order of the counts; empty where lookups were not followed."""

    @property
    def shape(self) -> Shape:
        """The round's shape."""
        return 0 if self.looked_up else self.steps, self.steps if self.budget is None else self.budget

    @property
    def of_all_drafts(self) -> Sequence[int]:
        """What each request accepted, or would have, had all drafts been verified; empty where that is not known."""
        return self.num_correct_drafts_per_req if self.budget is None else self.completed


class ZeroCycle:
    """Gathers the seconds of zero-step rounds until the draft's extend ends their cycle.

    The round that runs the extend takes longer than the others. How many there are between two changes with
    ``zero_step_extend_every``, with the batch, and with how much the policy wants to see of the draft. So a cycle ends
    where the extend ran (``RoundObservation.extended``), and its mean is what a round takes.
    """

    __slots__ = ("_rounds", "_seconds", "_whole")

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._rounds = 0
        """Rounds of the cycle under way, also those that could not be timed."""
        self._whole = False
        """Whether its beginning was seen."""

    def add(self, seconds: float | None, extended: bool) -> tuple[float, int] | None:
        """Take in a round of *seconds*, None if it could not be timed; *extended* says whether it ran the extend.

        Return the mean of the cycle that it completes, in seconds a round, and how many of its rounds were timed; None
        if it completes none, or one of which less than half is known. Rounds not timed count as the median of the
        others.
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
        usual = sorted(timed)[(len(timed) - 1) // 2]
        return (sum(timed) + (rounds - len(timed)) * usual) / rounds, len(timed)

    def begin(self) -> None:
        """Begin a cycle: the draft has just run, and has nothing to catch up on."""
        self._seconds, self._rounds, self._whole = [], 0, True

    def restart(self) -> None:
        """Take the rounds of the cycle under way as not timed: they were of another batch size."""
        self._seconds = []
