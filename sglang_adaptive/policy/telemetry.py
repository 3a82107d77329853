"""What a policy may tell monitoring beside its snapshot: a few numbers that are cheap to ask for, again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a round of one depth and batch size promises."""

    tokens_per_second: float
    """Output tokens of all requests of the round, bonus tokens included."""

    speedup: float | None
    """That rate over the one at zero steps; None when the policy has no time for zero steps."""


@dataclass(frozen=True, slots=True)
class RoundPrices:
    """What a policy believes of rounds at one batch size, by draft steps, seen from rounds of one depth."""

    seconds: Mapping[int, float]
    """Wall time of a round."""

    deviation: Mapping[int, float]
    """Relative standard deviation of ``seconds``."""

    tokens: Sequence[float]
    """Expected tokens of one request in a round, indexed by steps from 0."""

    tokens_deviation: Mapping[int, float]
    """Relative standard deviation of ``tokens`` over those of the depth that it is seen from; deeper ones alone."""

    with_budget: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """Wall time of a round by steps and budget, for rounds that verify fewer drafts than they make."""


@dataclass(frozen=True, slots=True)
class ProbeTotals:
    """What probes have cost since the policy was made; neither number ever falls."""

    started: int
    lost_seconds: float
    """Seconds lost against the depth that would have run, once it is known; a probe under way is not in it."""


@runtime_checkable
class Forecasts(Protocol):
    """A policy with a cost model and an estimate of acceptance."""

    def forecast(self, batch_size: int, steps: int) -> Forecast | None:
        """Return what *steps* promises at *batch_size*; None for a depth that the policy has no time for."""

    def acceptance_by_position(self) -> Sequence[float]:
        """Return, from position 1 on, the probability that a draft is accepted when the one before it was."""


@runtime_checkable
class Prices(Protocol):
    """A policy that can say what a round of another depth would have brought."""

    def prices(self, batch_size: int, steps: int) -> RoundPrices:
        """Return what every depth promises at *batch_size*, seen from rounds drafted with *steps*."""


@runtime_checkable
class Probes(Protocol):
    """A policy that now and then runs a depth in order to learn about it."""

    @property
    def probing(self) -> bool:
        """Whether the depth that was returned last is a probe's."""

    def probe_totals(self) -> ProbeTotals:
        """Return what probes have cost so far."""
