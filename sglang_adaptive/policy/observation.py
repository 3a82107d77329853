"""What a policy is told about one decode round."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


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
