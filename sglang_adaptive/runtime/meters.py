"""Counts that only monitoring needs, kept once somebody asks for them, in bounded memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sglang_adaptive.policy.observation import RoundObservation

LARGEST_REGION = 10
REGIONS = (
    "1",
    *(f"{1 << (key - 1)}-{(1 << key) - 1}" for key in range(2, LARGEST_REGION)),
    f"{1 << (LARGEST_REGION - 1)}+",
)
"""Names of the batch regions: powers of two, and all beyond the last."""


def region_of(batch_size: int) -> str:
    """Return the name of the region of *batch_size*: "1", "2-3", "4-7" ... "256-511", "512+"."""
    return REGIONS[min(max(1, batch_size).bit_length(), LARGEST_REGION) - 1]


@dataclass(slots=True)
class Region:
    """What rounds of one batch region yielded; ``seconds`` and ``tokens`` are of the rounds that could be timed."""

    seconds: float = 0.0
    tokens: int = 0
    batch_size: int = 0
    """Requests of its latest round."""

    steps: int = 0
    """Draft steps of its latest round."""


class Meters:
    """Switches by cause, and rates by batch region."""

    def __init__(self) -> None:
        self.switches_by_cause: Counter[str] = Counter()
        self.regions: dict[str, Region] = {}
        self.latest: Region | None = None
        """The region of the latest round."""

    def add_round(self, observation: RoundObservation) -> None:
        """Count a verified round under the region of its batch size."""
        name = region_of(observation.batch_size)
        region = self.regions.get(name)
        if region is None:
            region = self.regions[name] = Region()
        region.batch_size, region.steps = observation.batch_size, observation.steps
        if observation.seconds is not None:
            counts = observation.num_correct_drafts_per_req
            region.seconds += observation.seconds
            region.tokens += len(counts) + sum(counts)
        self.latest = region

    def add_switch(self, cause: str) -> None:
        """Count a change of the live depth."""
        self.switches_by_cause[cause] += 1
