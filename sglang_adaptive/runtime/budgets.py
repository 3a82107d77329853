"""Verify budgets: which rounds examine smaller ones, how accurate the draft's chances are, and the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_adaptive.runtime.counters import Counters

# Which rounds examine what smaller budgets would have kept of their drafts, and at how many steps.


LOOKS = 4
"""Rounds between two looks."""
LEAST_REQUESTS = 8
"""Minimum requests of an examined round."""


def looked_steps(count: int, requests: int, steps: int, budget: int | None, ladder: Sequence[int]) -> int:
    """Return how many of the first steps of round number *count* to examine; 0 for none.

    A round with a *budget* is examined at all its *steps*. One without (None) is examined as if it had fewer steps, in
    turn: any of *ladder*, ascending, that has a smaller budget.
    """
    if count % LOOKS or requests < LEAST_REQUESTS:
        return 0
    if budget is not None:
        return steps
    turns = [fewer for fewer in [rung for rung in ladder if rung][1:] if fewer <= steps]
    return turns[count // LOOKS % len(turns)] if turns else 0


def budgets_seen(ladder: Sequence[int], looked: int, budget: int | None) -> list[int]:
    """Return the budgets of *ladder* that a look at *looked* steps covers; at most the *budget* of the round."""
    return [rung for rung in ladder if 0 < rung < looked and (budget is None or rung <= budget)]


# The draft's own chances against actual acceptance, in bins by chance.
#
# A trial is a draft that was verified and reached, which means that all drafts before it were accepted. A power
# corrects chances that are too low or too high:
#
# accepted share = chance ** exponent


BINS = 5
"""Of equal width, from 0 to 1."""
UNITS = 1000
"""Chances are summed in thousandths."""
MEMORY_TRIALS = 20_000.0
"""Trials after which one counts half as much in ``exponent``."""
PRIOR_TRIALS = 50.0
"""Trials with accurate chances that each bin starts with."""
LEAST, MOST = 0.5, 2.0
"""Bounds of the exponent."""
_MIDDLES = tuple((at + 0.5) / BINS for at in range(BINS - 1))


class Calibration:
    """Totals by bin, and the recent exponent."""

    def __init__(self) -> None:
        self.trials = [0] * BINS
        self.believed = [0] * BINS
        """Sums of chances, in ``UNITS``."""
        self.accepted = [0] * BINS
        self._recent = [[PRIOR_TRIALS, PRIOR_TRIALS * middle, PRIOR_TRIALS * middle] for middle in _MIDDLES]
        """Recent trials, chances and successes of all bins but the last, whose drafts are rarely left out."""
        self.exponent = 1.0
        """The power that recently corrected the chances."""

    def add(self, trials: Sequence[int], believed: Sequence[int], accepted: Sequence[int]) -> None:
        """Add the trials of a round by bin: their number, the sum of their chances in ``UNITS``, and successes."""
        for mine, more in ((self.trials, trials), (self.believed, believed), (self.accepted, accepted)):
            mine[:] = map(int.__add__, mine, more)
        fade = 0.5 ** (sum(trials[:-1]) / MEMORY_TRIALS)
        for recent, *new in zip(self._recent, trials, believed, accepted, strict=False):
            recent[:] = [fade * old + more for old, more in zip(recent, (new[0], new[1] / UNITS, new[2]), strict=True)]
        self.exponent = self._matched()

    def _matched(self) -> float:
        """Return, by bisection, the power at which expected and actual accepted drafts are equal."""
        low, high = LEAST, MOST
        accepted = sum(hits for _, _, hits in self._recent)
        for _ in range(12):
            middle = 0.5 * (low + high)
            if sum(tried * (chance / tried) ** middle for tried, chance, _ in self._recent if tried > 1e-6) > accepted:
                low = middle
            else:
                high = middle
        return 0.5 * (low + high)


# Results of rounds with a budget and accuracy of the draft's chances, for monitoring.


def budget_report(budget: int | None, counters: Counters, calibration: Calibration) -> dict[str, Any]:
    """Return as JSON builtins

    - ``budget``: of the latest round, None if it verified all drafts;
    - ``rounds``: rounds with a budget, by ``steps`` and ``budget``;
    - ``verified_per_request``: mean drafts verified per request in all rounds that drafted, None without any;
    - ``calibration``: by bin of the draft's chance for its token, ``from`` and ``to``: the drafts that were verified
      and reached (``trials``), their mean chance (``believed``) and the share that was ``accepted``.
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
