"""Sums over verified rounds of one batch size and number of steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sglang_adaptive.policy.observation import RoundObservation


@dataclass(slots=True)
class RoundMix:
    """Rounds that were drafted with ``steps``, and verified with ``budget``, for ``batch_size`` requests."""

    batch_size: int
    steps: int
    chosen: bool
    """Whether the policy chose the steps; False while an operator holds them."""

    budget: int | None = None
    """Mean drafts verified of a request; None where all were."""

    rounds: int = 0
    timed: int = 0
    """Rounds with a measured time; ``timed_seconds`` is their sum."""

    timed_seconds: float = 0.0
    accepted: Counter[int] = field(default_factory=Counter)
    """Requests by their accepted drafts."""

    completed: Counter[int] = field(default_factory=Counter)
    """Of rounds with a budget: requests by the drafts that they would have had accepted of all."""

    def add(self, observation: RoundObservation) -> None:
        """Count a round."""
        self.rounds += 1
        accepted = self.accepted
        for count in observation.num_correct_drafts_per_req:  # for a few requests quicker than Counter.update
            accepted[count] += 1
        if self.budget is not None:
            self.completed.update(observation.completed or observation.num_correct_drafts_per_req)
        if observation.seconds is not None:
            self.timed += 1
            self.timed_seconds += observation.seconds

    @property
    def requests(self) -> int:
        """Requests of all rounds; each got one bonus token a round."""
        return self.accepted.total()

    @property
    def tokens(self) -> int:
        """Output tokens of all rounds, bonus tokens included."""
        return sum((count + 1) * requests for count, requests in self.accepted.items())

    def seconds(self, of_a_round: float) -> float:
        """Return the seconds of all rounds; an untimed one counts as the mean of the others, else *of_a_round*."""
        mean = self.timed_seconds / self.timed if self.timed else of_a_round
        return self.timed_seconds + (self.rounds - self.timed) * mean

    def tokens_at(self, steps: int, expected: Sequence[float]) -> float:
        """Return the tokens that as many rounds of *steps* would have yielded for the same requests.

        Up to the drafted steps this follows from the accepted drafts. Beyond them, a request with all drafts accepted
        continues as *expected*: tokens of one request in a round, indexed by steps from 0.
        """
        accepted = self.accepted if self.budget is None else self.completed
        certain = sum((min(count, steps) + 1) * requests for count, requests in accepted.items())
        if steps <= self.steps:
            return float(certain)
        reach = expected[self.steps] - expected[self.steps - 1] if self.steps else 1.0
        more = (expected[steps] - expected[self.steps]) / reach if reach > 0.0 else 0.0
        return certain + accepted[self.steps] * more
