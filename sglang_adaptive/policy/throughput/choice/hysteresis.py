"""Whether what other steps promise is worth a switch."""

from __future__ import annotations

from sglang_adaptive.policy.throughput.acceptance.estimator import AcceptanceEstimator

SIGMAS = 1.0
"""Standard deviations of the promised gain that do not count: in a load that does not change chance promises often."""
HOLD_ROUNDS = 0.1
"""What staying must have cost, in rounds, until other steps are taken: a switch costs about as much."""


class SwitchHysteresis:
    """Adds up what staying costs, as far as it is more than *margin* and chance."""

    def __init__(self, margin: float) -> None:
        self._margin = margin
        self._cost = 0.0

    def restart(self) -> None:
        """Begin anew: the steps were changed."""
        self._cost = 0.0

    def keeps(self, gain: float, live: int, best: int, acceptance: AcceptanceEstimator) -> bool:
        """Take in a round in which *best* steps promise *gain* (relative) over *live*; say whether these stay."""
        over = gain - self._margin
        if over > 0.0:
            over -= SIGMAS * acceptance.ratio_deviation(live, best)
        self._cost = self._cost + over if over > 0.0 else 0.5 * self._cost
        return self._cost < HOLD_ROUNDS
