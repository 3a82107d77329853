"""Which steps to run: keep the live ones until others promise enough more, and bound what speculation may lose.

Against zero steps, speculation may cost 1% of the throughput over any 500 rounds. Losses are counted in rounds at zero
steps: a round that takes ``t`` and yields ``m`` tokens per request loses ``t / t0 - m`` rounds.
"""

from __future__ import annotations

import math

from sglang_adaptive.policy.throughput.acceptance import AcceptanceEstimator
from sglang_adaptive.policy.throughput.cost import RoundTimeRow

HOLD_ROUNDS = 0.1
"""Cost of staying, in rounds, at which the steps change; a switch costs about as much."""
WINDOW_ROUNDS = 500
"""Rounds of the bound; losses decay over the same number of rounds."""
ALLOWANCE = 3.5
"""Rounds that may be lost in a window: 1% of it, minus what the rounds in flight lose."""
DEVIATIONS_PER_LOST = 0.5
"""Standard deviations by which speculation must beat zero steps, per round lost. A fixed gain would disable speculation
for good: with one request most of a loss is bad luck. With 0.25, a draft that fails at once costs 1.1% of 500 rounds at
batch 1 (simulated)."""
MARGIN = 0.01
"""Minimum gain over zero steps that speculation must promise."""


class StepChoice:
    """Decides before every round that is not a probe."""

    def __init__(self, live: int, margin: float) -> None:
        """Start at *live* steps; *margin* is the relative gain that other steps must promise."""
        self.live = live
        """The chosen steps; a probe does not change them."""
        self.lost = 0.0
        """Rounds recently lost against zero steps and not regained, without probes out of zero steps."""
        self._margin = margin
        self._cost = 0.0
        """Cost of staying, in rounds, beyond the margin and chance."""

    def decide(self, row: RoundTimeRow, acceptance: AcceptanceEstimator) -> None:
        """Keep the live steps or change them."""
        live, slower = self.live, acceptance.slower(self.live)
        best, least, live_time, paying, soonest = live, math.inf, math.inf, 0, math.inf
        for rung, steps, seconds in row.rungs:
            time = seconds * slower[rung]
            if steps == live:
                live_time = time
            if time < least:
                best, least = steps, time
            if steps and time < soonest:
                paying, soonest = steps, time
        if live_time < math.inf and self.stays(live_time / least - 1.0, best, acceptance):
            best, least = live, live_time
        if best and row.zero is not None:
            gain = row.zero * slower[0] / least - 1.0
            if gain < MARGIN or (self.lost and gain < self._asked(acceptance.ratio_deviation(0, best))):
                best = 0
        if best == 0 and live and paying and self._tolerates_loss(row, acceptance):
            best = paying
        if best != live:
            self.live, self._cost = best, 0.0

    def stays(self, gain: float, best: int, acceptance: AcceptanceEstimator) -> bool:
        """Count a round in which *best* steps promise *gain* (relative) over the live ones; return whether to stay.

        One standard deviation of the gain does not count, because chance alone often promises a gain under steady load.
        """
        over = gain - self._margin
        if over > 0.0:
            over -= acceptance.ratio_deviation(self.live, best)
        self._cost = self._cost + over if over > 0.0 else 0.5 * self._cost
        return self._cost < HOLD_ROUNDS

    def book(self, loss: float) -> None:
        """Add a round's loss against zero steps; negative for a gain."""
        self.lost = max(0.0, self.lost * (1.0 - 1.0 / WINDOW_ROUNDS) + loss)

    def _asked(self, deviation: float) -> float:
        """Return the required gain over zero steps; *deviation* is that of the promised gain (log)."""
        return max(MARGIN, DEVIATIONS_PER_LOST * self.lost * deviation)

    def _tolerates_loss(self, row: RoundTimeRow, acceptance: AcceptanceEstimator) -> bool:
        """Whether usual text pays and little is lost yet: hard text may end soon, which zero steps notice late."""
        if row.zero is None or self.lost >= ALLOWANCE:
            return False
        usual = acceptance.usual_tokens
        return any(usual[steps] * row.zero > (1.0 + MARGIN) * seconds for _, steps, seconds in row.rungs if steps)
