"""Which steps to run: keep the live ones until others promise enough more, and bound what speculation may lose.

Against zero steps, speculation may cost 1% of the throughput over any 500 rounds. The unit is one round at zero steps:
a round that takes ``t`` and yields ``m`` tokens a request has lost ``t / t0 - m`` of them.
"""

from __future__ import annotations

import math

from sglang_adaptive.policy.throughput.acceptance import AcceptanceEstimator
from sglang_adaptive.policy.throughput.cost import RoundTimeRow

HOLD_ROUNDS = 0.1
"""What staying must have cost, in rounds, until other steps are taken: a switch costs about as much."""
WINDOW_ROUNDS = 500
"""Rounds of the bound; a loss is forgotten over as many."""
ALLOWANCE = 3.5
"""Rounds that may be lost in a window: 1% of it, less what the rounds lose whose results are under way."""
DEVIATIONS_PER_LOST = 0.5
"""Standard deviations by which speculation must promise more than zero steps, for each round lost. A fixed gain would
keep it away for good: with one request most of a loss is bad luck. With 0.25 a draft that fails at once costs 1.1% of
500 rounds at batch 1 (simulated)."""
MARGIN = 0.01
"""Gain over zero steps that speculation must promise at least."""


class StepChoice:
    """Decides before every round that no probe has taken."""

    def __init__(self, live: int, margin: float) -> None:
        """Begin at *live* steps; *margin* is the relative gain that other steps must promise."""
        self.live = live
        """The steps that a decision keeps or leaves; a probe does not change them."""
        self.lost = 0.0
        """Rounds lost lately against zero steps and not made up for; probes out of zero steps not counted."""
        self._margin = margin
        self._cost = 0.0
        """What staying has cost, in rounds, as far as it was more than the margin and chance."""

    def decide(self, row: RoundTimeRow, acceptance: AcceptanceEstimator) -> None:
        """Keep the live steps or take others."""
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
        """Take in a round in which *best* steps promise *gain* (relative) over the live ones; say whether these stay.

        One standard deviation of the gain does not count: under a steady load chance alone often promises something.
        """
        over = gain - self._margin
        if over > 0.0:
            over -= acceptance.ratio_deviation(self.live, best)
        self._cost = self._cost + over if over > 0.0 else 0.5 * self._cost
        return self._cost < HOLD_ROUNDS

    def book(self, loss: float) -> None:
        """Enter a round's loss against zero steps; negative when it gained."""
        self.lost = max(0.0, self.lost * (1.0 - 1.0 / WINDOW_ROUNDS) + loss)

    def _asked(self, deviation: float) -> float:
        """Return the gain over zero steps to ask for; *deviation* is that of the promised gain (log)."""
        return max(MARGIN, DEVIATIONS_PER_LOST * self.lost * deviation)

    def _tolerates_loss(self, row: RoundTimeRow, acceptance: AcceptanceEstimator) -> bool:
        """Whether usual text pays and little is lost yet: hard text may end soon, and zero steps notice that late."""
        if row.zero is None or self.lost >= ALLOWANCE:
            return False
        usual = acceptance.usual_tokens
        return any(usual[steps] * row.zero > (1.0 + MARGIN) * seconds for _, steps, seconds in row.rungs if steps)
