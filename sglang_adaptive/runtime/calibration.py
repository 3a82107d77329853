"""The draft's own chances against what was accepted, by bins of the chance.

A trial is a draft that was verified and reached, which means that all drafts before it were accepted. Where chances are
too low or too high, a power of them is right:

    accepted share = chance ** exponent
"""

from __future__ import annotations

from collections.abc import Sequence

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
