"""Whether what another depth promises is worth a switch.

The gain must exceed the margin by some standard deviations of the two rates' ratio, fewer the longer another depth has
gone on promising: chance soon ends. In a load that does not change chance has more occasions, and an hour is long.
"""

from __future__ import annotations

from sglang_adaptive.policy.throughput.acceptance.estimator import AcceptanceEstimator
from sglang_adaptive.policy.throughput.acceptance.ratio_deviation import ratio_deviation

DOUBT, PATIENCE = 1.5, 300
"""Standard deviations at first, and the rounds of promises after which none is asked for."""
CALM_ROUNDS, CALM_DOUBT, CALM_PATIENCE = 500, 3.0, 1000
"""The same once neither acceptance nor the batch size has changed for so many rounds."""


class Conviction:
    """Counts the rounds in which another depth promised more than the margin, less those in which none did."""

    __slots__ = ("_acceptance", "_margin", "_promised")

    def __init__(self, acceptance: AcceptanceEstimator, margin: float) -> None:
        self._acceptance, self._margin = acceptance, margin
        self._promised = 0

    def restart(self) -> None:
        """Begin to count anew: the depth was changed."""
        self._promised = 0

    def suffices(self, gain: float, live: int, best: int, unchanged: int) -> bool:
        """Count a round in which *best* steps promise *gain* (relative) over *live*; say whether that is enough.

        *unchanged* are the rounds for which the load has stayed as it is.
        """
        if gain <= self._margin:
            self._promised = max(0, self._promised - 1)
            return False
        self._promised += 1
        doubt, patience = (CALM_DOUBT, CALM_PATIENCE) if unchanged >= CALM_ROUNDS else (DOUBT, PATIENCE)
        doubt *= max(0.0, 1.0 - self._promised / patience)
        return gain > self._margin + doubt * ratio_deviation(self._acceptance, live, best)
