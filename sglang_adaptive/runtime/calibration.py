"""The draft's own chances against what was accepted, by bins of the chance.

A trial is a draft that was verified and reached, which means that all drafts before it were accepted. Where chances are
too low or too high, a power of them is right:

    accepted share = chance ** exponent
"""

from __future__ import annotations

import math
from collections.abc import Sequence

BINS = 5
"""Of equal width, from 0 to 1."""
UNITS = 1000
"""Chances are added up in thousandths."""
MEMORY_TRIALS = 20_000.0
"""Trials after which one counts half as much in ``exponent``."""
PRIOR_TRIALS = 200.0
"""Trials of right chances that the exponent starts with."""
LEAST, MOST = 0.5, 2.0
"""Bounds of the exponent."""


class Calibration:
    """Totals by bin, and what they say lately."""

    def __init__(self) -> None:
        self.trials = [0] * BINS
        self.believed = [0] * BINS
        """Sums of chances, in ``UNITS``."""
        self.accepted = [0] * BINS
        self._recent = [0.0, 0.0, 0.0]
        """Trials, chances and accepted drafts of all bins but the last, whose drafts are hardly ever left out."""

    def add(self, trials: Sequence[int], believed: Sequence[int], accepted: Sequence[int]) -> None:
        """Take in the trials of a round, by bin: their number, the sum of their chances in ``UNITS``, and successes."""
        for mine, more in ((self.trials, trials), (self.believed, believed), (self.accepted, accepted)):
            mine[:] = map(int.__add__, mine, more)
        fresh = sum(trials[:-1]), sum(believed[:-1]) / UNITS, sum(accepted[:-1])
        fade = 0.5 ** (fresh[0] / MEMORY_TRIALS)
        self._recent = [fade * old + new for old, new in zip(self._recent, fresh, strict=True)]

    @property
    def exponent(self) -> float:
        """The power of the chances that was right lately; 1 where nothing is known."""
        trials, believed, accepted = self._recent
        chance = (believed + 0.5 * PRIOR_TRIALS) / (trials + PRIOR_TRIALS)
        share = (accepted + 0.5 * PRIOR_TRIALS) / (trials + PRIOR_TRIALS)
        return min(MOST, max(LEAST, math.log(share) / math.log(chance)))
