"""A round as it was drafted, noted when its result arrives."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from sglang_adaptive.policy.observation import BudgetEvidence


@dataclass(frozen=True, slots=True)
class Look:
    """What the device says of a round's drafts beside what was accepted."""

    evidence: BudgetEvidence | None = None
    """As :attr:`RoundObservation.evidence`."""

    trials: Sequence[int] = ()
    """By bin of the draft's chance, drafts that were verified and reached; see ``calibration``. Empty without looks."""

    believed: Sequence[int] = ()
    """The sums of their chances, in thousandths."""

    accepted: Sequence[int] = ()
    """How many of them were accepted."""

    budget: int | None = None
    """As :attr:`RoundObservation.budget`, like the next two."""

    verified: Sequence[int] = ()
    completed: Sequence[int] = ()


@dataclass(slots=True)
class Drafted:
    """Steps and requests of a round; with overlap scheduling the live steps may have changed since."""

    steps: int
    context_tokens: int | None = None
    """Sum of the requests' sequence lengths before the round, in tokens; None when unknown."""

    shadow_accepts: Sequence[int] = ()
    """As :attr:`RoundObservation.shadow_accepts`."""

    extended: bool = True
    """As :attr:`RoundObservation.extended`."""

    largest_batch: int | None = None
    """Requests of the rank with most, where ranks run their rounds together; None where a round is this rank's own."""

    requests: Sequence[Hashable] = ()
    """Ids of the requests, in the order of the accept counts; empty when unknown."""

    look: Look | None = None
    """None in rounds that were not looked at; each round with a budget is."""
