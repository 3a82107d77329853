"""Acceptance that differs by batch size, used only where visits show it again and again.

A *visit* is a stretch of rounds at one batch size or near it. Each leaves the log-odds that it ended with in its
region (powers of two). Entering another region moves the estimate by the difference of the two means, if that
exceeds ``SIGMAS`` of its standard error; the spread between visits of one region is what the error is made of, so
acceptance that changes for other reasons hides a difference instead of making one up.
"""

from __future__ import annotations

import math

NEAR = 1.5
"""A visit ends when the batch is so many times larger or smaller than at its start."""
LEAST_ROUNDS = 24
LEAST_VISITS = 4
MOST_VISITS = 24
"""Visits that a mean remembers."""
SIGMAS = 3.0
PRIOR_VARIANCE, PRIOR_VISITS = 0.25, 2.0
"""Variance between visits before any are seen, and how many visits that counts for."""


class _Region:
    """Mean and variance of what visits ended with."""

    __slots__ = ("mean", "squares", "visits")

    def __init__(self) -> None:
        self.visits = 0
        self.mean = 0.0
        self.squares = 0.0

    def add(self, value: float) -> None:
        self.visits = min(self.visits + 1, MOST_VISITS)
        difference = value - self.mean
        self.mean += difference / self.visits
        self.squares += difference * (value - self.mean)
        if self.visits == MOST_VISITS:
            self.squares *= 1.0 - 1.0 / MOST_VISITS

    @property
    def error(self) -> float:
        """Squared standard error of the mean."""
        variance = (self.squares + PRIOR_VARIANCE * PRIOR_VISITS) / (self.visits - 1 + PRIOR_VISITS)
        return variance / self.visits


class BatchRegions:
    """Follows the batch size, and says when acceptance is to move with it."""

    def __init__(self) -> None:
        self._regions: dict[int, _Region] = {}
        self._reference = 0
        self._rounds = 0

    def follow(self, batch_size: int, acceptance: float) -> float:
        """Take in a drafted round; *acceptance* is the first position's, as believed before it.

        Return the log-odds to move acceptance by, 0 in nearly every round.
        """
        if self._reference and self._reference / NEAR <= batch_size <= self._reference * NEAR:
            self._rounds += 1
            return 0.0
        left, rounds = self._reference, self._rounds
        self._reference, self._rounds = max(1, batch_size), 1
        if not left:
            return 0.0
        if rounds >= LEAST_ROUNDS:
            self._region(left).add(math.log(acceptance / (1.0 - acceptance)))
        return self._difference(self._region(left), self._region(self._reference))

    def as_list(self) -> list[dict[str, float]]:
        """Return what is known by region, as builtins."""
        return [
            {"from_batch": 1 << (key - 1), "visits": region.visits, "acceptance": 1 / (1 + math.exp(-region.mean))}
            for key, region in sorted(self._regions.items())
            if region.visits
        ]

    def _region(self, batch_size: int) -> _Region:
        return self._regions.setdefault(batch_size.bit_length(), _Region())

    @staticmethod
    def _difference(left: _Region, entered: _Region) -> float:
        if left is entered or min(left.visits, entered.visits) < LEAST_VISITS:
            return 0.0
        difference = entered.mean - left.mean
        return difference if abs(difference) > SIGMAS * math.sqrt(left.error + entered.error) else 0.0
