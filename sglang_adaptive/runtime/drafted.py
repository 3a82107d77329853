"""A round as it was drafted, noted when its result arrives."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


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
