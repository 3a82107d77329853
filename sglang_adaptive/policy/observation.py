"""What a policy is told about one decode round."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass


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
    """Draft steps of the round; 0 for a round without drafting."""

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

    @property
    def place(self) -> tuple[int, int]:
        """Steps, and budget: the steps again without one."""
        return self.steps, self.steps if self.budget is None else self.budget

    @property
    def of_all_drafts(self) -> Sequence[int]:
        """What each request accepted, or would have, had all drafts been verified; empty where that is not known."""
        return self.num_correct_drafts_per_req if self.budget is None else self.completed
