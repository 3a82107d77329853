"""One scene at one batch size on one cost profile: the results of every contender."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sglang_adaptive.lab.simulate.contenders import Contender, static
from sglang_adaptive.lab.simulate.cost import FloatArray, RoundCost
from sglang_adaptive.lab.simulate.real.oracles import in_hindsight
from sglang_adaptive.lab.simulate.real.scenes import Live, Work
from sglang_adaptive.lab.simulate.real.serve import Served, serve
from sglang_adaptive.policy.throughput.lookups import TRACKING_SECONDS

SETTLED_SECONDS = 60.0
"""Start of a run that is left out of the switch count, if the run is at least twice as long."""
FEWEST_FINISHED = 40
"""The slowest decile needs at least this many requests done in both runs; with fewer it says nothing."""


@dataclass(frozen=True)
class Score:
    """One contender in one cell."""

    over_single: float
    """Its rate over that of the cell's best single depth."""
    switches: float
    """Changes of steps per hour, once settled; a probe counts as two."""
    slowest: float | None
    """Mean seconds per token of the slowest tenth of the requests, over the same at the best single depth."""


@dataclass(frozen=True)
class Cell:
    """The scores of a cell."""

    texts: str
    scene: str
    load: str
    """The batch size of a closed loop as digits, or the name of an open loop."""
    profile: str
    rounds: int
    """Rounds at the best single depth."""
    best_single: int
    singles: Mapping[int, float]
    """Rate of each fixed number of steps; see ``rate``."""
    scores: Mapping[str, Score] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Place:
    """A work on round times: everything that a cell's contenders share."""

    work: Work
    cost: RoundCost
    table: FloatArray
    """Seconds by batch size and steps."""
    clock: FloatArray
    """Noise by round."""
    tracking: float = TRACKING_SECONDS
    """Seconds that tracking texts for lookups adds to a round."""

    @property
    def ladder(self) -> tuple[int, ...]:
        """Depths that may be chosen."""
        return self.cost.steps

    @property
    def given(self) -> RoundCost | None:
        """The profile that a policy starts with: the true one."""
        return self.cost

    def singles(self) -> dict[int, Served]:
        """Return the run of each fixed number of steps."""
        return {steps: self.served(static(steps)) for steps in self.ladder}

    def served(self, contender: Contender) -> Served:
        """Return the run of a fresh policy."""
        return serve(contender.make(self), Live(self.work), self.ladder, self.table, self.clock, self.tracking)


def rate(served: Served, work: Work) -> float:
    """Return tokens per second as requests see it: output tokens over the total seconds that requests spent.

    In a closed loop this is the server's tokens/s per slot. With arrivals the seconds run from the arrival, because the
    server's tokens/s then depend on its clients.
    """
    if work.arrivals is None:
        return served.tokens / (served.seconds * work.most)
    return served.tokens / float((served.finished_at - work.arrivals).sum())


def play_cell(
    place: Place, names: tuple[str, str, str], contenders: Sequence[Contender], oracles: Sequence[str] = ()
) -> Cell:
    """Play every contender, and in a closed loop *oracles*; *names* are those of texts, load and profile."""
    work, singles = place.work, place.singles()
    rates = {steps: rate(run, work) for steps, run in singles.items()}
    best = max(rates, key=lambda steps: rates[steps])
    runs = {contender.name: place.served(contender) for contender in contenders}
    if work.arrivals is None:
        runs |= in_hindsight(oracles, work, place.ladder, place.table, singles[best])
    scores = {
        name: Score(rate(run, work) / rates[best], switches_an_hour(run), slowest_decile(run, singles[best], work))
        for name, run in runs.items()
    }
    texts, load, profile = names
    return Cell(texts, work.name, load, profile, len(singles[best].steps), best, rates, scores)


def switches_an_hour(served: Served) -> float:
    """Return changes of steps an hour of serving, the first minute left out of runs of two minutes and more."""
    since = SETTLED_SECONDS if served.seconds >= 2.0 * SETTLED_SECONDS else 0.0
    changed = served.ended[:-1][served.steps[1:] != served.steps[:-1]]
    return float((changed >= since).sum() / (served.seconds - since) * 3600.0)


def slowest_decile(served: Served, single: Served, work: Work) -> float | None:
    """Return the mean seconds a token of the slowest tenth over that of the slowest tenth of *single*.

    Of requests that both runs have finished; None where they are few.
    """
    both = np.isfinite(served.finished_at) & np.isfinite(single.finished_at)
    count = int(both.sum())
    if count < FEWEST_FINISHED:
        return None
    slowest = [np.sort(_seconds_a_token(run, work)[both])[-max(1, count // 10) :].mean() for run in (served, single)]
    return float(slowest[0] / slowest[1])


def _seconds_a_token(served: Served, work: Work) -> FloatArray:
    begun = served.joined_at if work.arrivals is None else work.arrivals
    return np.asarray((served.finished_at - begun) / work.lengths)
