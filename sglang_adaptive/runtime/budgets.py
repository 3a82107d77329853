"""Verify budgets: which rounds look at smaller ones, how right the draft's chances are, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_adaptive.runtime.counters import Counters

# Which rounds say what smaller budgets would have kept of their drafts, and of how many of their steps.


LOOKS = 4
"""Rounds from one look to the next."""
LEAST_REQUESTS = 8
"""Requests from which on rounds are looked at."""


def looked_steps(count: int, requests: int, steps: int, budget: int | None, ladder: Sequence[int]) -> int:
    """Return how many steps of round number *count* are looked at, the first ones; 0 for none.

    A round of *steps* with a *budget* says what it can of all its steps. One without it, None, is looked at as if it
    had fewer steps in turn: any of *ladder*, ascending, below which there is a budget.
    """
    if count % LOOKS or requests < LEAST_REQUESTS:
        return 0
    if budget is not None:
        return steps
    turns = [fewer for fewer in [rung for rung in ladder if rung][1:] if fewer <= steps]
    return turns[count // LOOKS % len(turns)] if turns else 0


def budgets_seen(ladder: Sequence[int], looked: int, budget: int | None) -> list[int]:
    """Return the budgets of *ladder* that a look at *looked* steps tells of; at most the *budget* of the round."""
    return [rung for rung in ladder if 0 < rung < looked and (budget is None or rung <= budget)]


# The draft's own chances against what was accepted, by bins of the chance.
#
# A trial is a draft that was verified and reached, which means that all drafts before it were accepted. Where chances
# are too low or too high, a power of them is right:
#
# accepted share = chance ** exponent


BINS = 5
"""Of equal width, from 0 to 1."""
UNITS = 1000
"""Chances are added up in thousandths."""
MEMORY_TRIALS = 20_000.0
"""Trials after which one counts half as much in ``exponent``."""
PRIOR_TRIALS = 50.0
"""Trials of right chances that each bin starts with."""
LEAST, MOST = 0.5, 2.0
"""Bounds of the exponent."""
_MIDDLES = tuple((at + 0.5) / BINS for at in range(BINS - 1))


class Calibration:
    """Totals by bin, and what they say lately."""

    def __init__(self) -> None:
        self.trials = [0] * BINS
        self.believed = [0] * BINS
        """Sums of chances, in ``UNITS``."""
        self.accepted = [0] * BINS
        self._recent = [[PRIOR_TRIALS, PRIOR_TRIALS * middle, PRIOR_TRIALS * middle] for middle in _MIDDLES]
        """Trials, chances and successes lately of all bins but the last, whose drafts are hardly ever left out."""
        self.exponent = 1.0
        """The power of the chances that was right lately."""

    def add(self, trials: Sequence[int], believed: Sequence[int], accepted: Sequence[int]) -> None:
        """Take in the trials of a round, by bin: their number, the sum of their chances in ``UNITS``, and successes."""
        for mine, more in ((self.trials, trials), (self.believed, believed), (self.accepted, accepted)):
            mine[:] = map(int.__add__, mine, more)
        fade = 0.5 ** (sum(trials[:-1]) / MEMORY_TRIALS)
        for recent, *new in zip(self._recent, trials, believed, accepted, strict=False):
            recent[:] = [fade * old + more for old, more in zip(recent, (new[0], new[1] / UNITS, new[2]), strict=True)]
        self.exponent = self._matched()

    def _matched(self) -> float:
        """Return the power by which as many drafts would have been accepted as were, by bisection."""
        low, high = LEAST, MOST
        accepted = sum(hits for _, _, hits in self._recent)
        for _ in range(12):
            middle = 0.5 * (low + high)
            if sum(tried * (chance / tried) ** middle for tried, chance, _ in self._recent if tried > 1e-6) > accepted:
                low = middle
            else:
                high = middle
        return 0.5 * (low + high)


# What rounds with a budget came to, and how right the draft's chances were, for monitoring.


def budget_report(budget: int | None, counters: Counters, calibration: Calibration) -> dict[str, Any]:
    """Return as JSON builtins

    - ``budget``: of the latest round, None where it verified all drafts;
    - ``rounds``: rounds with a budget, by ``steps`` and ``budget``;
    - ``verified_per_request``: mean drafts verified of a request in all rounds that drafted, None without any;
    - ``calibration``: by bin of the chance that the draft gives its token, ``from`` and ``to``: the drafts that were
      verified and reached (``trials``), the mean chance (``believed``) and the share of them that was ``accepted``.
    """
    return {
        "budget": budget,
        "rounds": [
            {"steps": steps, "budget": kept, "rounds": rounds}
            for (steps, kept), rounds in sorted(counters.budgets.items())
        ],
        "verified_per_request": counters.verified_per_request(),
        "calibration": [_bin(calibration, at) for at in range(BINS)],
    }


def _bin(calibration: Calibration, at: int) -> dict[str, Any]:
    trials = calibration.trials[at]
    return {
        "from": at / BINS,
        "to": (at + 1) / BINS,
        "trials": trials,
        "believed": calibration.believed[at] / UNITS / trials if trials else None,
        "accepted": calibration.accepted[at] / trials if trials else None,
    }
