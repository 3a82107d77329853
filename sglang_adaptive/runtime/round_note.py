"""What is known of a round beside its accept counts, from its launch until its result has arrived."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_adaptive.policy.observation import BudgetEvidence, Lookup


@dataclass(slots=True)
class RoundNote:
    """One round. With overlap scheduling the live steps may have changed when its result arrives."""

    steps: int
    """The steps that drafted it."""

    context_tokens: int | None = None
    """Sum of the requests' sequence lengths before the round, in tokens; None when unknown."""

    requests: Sequence[Hashable] = ()
    """Ids of the requests, in the order of the accept counts; empty when unknown."""

    lengths: Sequence[int] = ()
    """Sequence lengths of the requests before the round, in the order of the accept counts; empty when unknown."""

    audit: bool = False
    """Whether all its requests are decoded again for the audit: nothing is counted or learnt from it."""

    largest_batch: int | None = None
    """Requests of the rank with most, where ranks run their rounds together; None where a round is this rank's own."""

    extended: bool = True
    """As :attr:`RoundObservation.extended`, like the fields of these names below."""
    shadow_accepts: Sequence[int] = ()
    budget: int | None = None
    verified: Sequence[int] = ()
    completed: Sequence[int] = ()
    evidence: BudgetEvidence | None = None

    lookups: Sequence[Lookup] = ()
    trials: Sequence[int] = ()
    """By bin of the draft's chance, drafts that were verified and reached; see ``calibration``. Empty without looks."""
    believed: Sequence[int] = ()
    """The sums of their chances, in thousandths."""
    accepted: Sequence[int] = ()
    """How many of them were accepted."""

    arriving: list[Callable[[RoundNote, Any], None]] = field(default_factory=list)
    """Fill in fields from numbers that the device sends with the result; called with it once it has arrived."""

    def arrived(self, result: Any) -> None:
        """Fill in what *result*, which is on the host now, carries."""
        for fill in self.arriving:
            fill(self, result)
        self.arriving.clear()
