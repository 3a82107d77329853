"""Speculation may cost 1% of the throughput that zero steps would have had over any 500 rounds, and no more.

The unit is one round at zero steps. A round that takes ``t`` and yields ``m`` tokens a request has lost ``t / t0 - m``
of them.
"""

from __future__ import annotations

WINDOW_ROUNDS = 500
"""Rounds of the promise; a loss is forgotten over as many."""
ALLOWANCE = 3.5
"""Rounds that may be lost in a window: 1% of it, less what the rounds lose whose results are under way."""
DEVIATIONS_PER_LOST = 0.5
"""Standard deviations by which speculation must promise more than zero steps, for each round lost. A fixed gain would
keep it away for good: with one request most of a loss is bad luck. With 0.25 a draft that fails at once costs 1.1% of
500 rounds at batch 1 (simulated)."""
MARGIN = 0.01
"""Gain over zero steps that speculation must promise at least."""


class BaselineLossBudget:
    """The account against never speculating."""

    def __init__(self) -> None:
        self.lost = 0.0
        """Rounds lost lately and not made up for since; probes out of zero steps not counted."""

    def book(self, loss: float) -> None:
        """Enter a round's loss; negative when it gained."""
        self.lost = max(0.0, self.lost * (1.0 - 1.0 / WINDOW_ROUNDS) + loss)

    def demands(self, deviation: float) -> float:
        """Return the gain over zero steps to ask for; *deviation* is that of the promised gain (log)."""
        return max(MARGIN, DEVIATIONS_PER_LOST * self.lost * deviation)
