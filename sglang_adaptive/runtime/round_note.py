"""What is known of a round, from its launch until the policy observes its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_adaptive.policy.observation import RoundObservation


@dataclass(slots=True)
class RoundNote(RoundObservation):
    """One round. With overlap scheduling the live steps may have changed when its result arrives.

    The observation's fields are filled in one by one, the accept counts last.
    """

    num_correct_drafts_per_req: Sequence[int] = ()
    batch_size: int = 0

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
