"""What is known of a round, from its launch until its result has arrived and the policy is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_adaptive.policy.observation import RoundObservation


@dataclass(slots=True)
class RoundNote(RoundObservation):
    """One round. With overlap scheduling the live steps may have changed when its result arrives.

    The fields of the observation are filled in one after the other, the accept counts last.
    """

    num_correct_drafts_per_req: Sequence[int] = ()
    batch_size: int = 0

    lengths: Sequence[int] = ()
    """Sequence lengths of the requests before the round, in the order of the accept counts; empty when unknown."""

    audit: bool = False
    """Whether all its requests are decoded again for the audit: nothing is counted or learnt from it."""

    largest_batch: int | None = None
    """Requests of the rank with most, where ranks run their rounds together; None where a round is this rank's own."""

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
