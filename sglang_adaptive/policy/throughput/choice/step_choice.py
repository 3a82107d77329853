"""The steps that decisions keep or take: those that the batch's text is done soonest with, if that is sure enough."""

from __future__ import annotations

import math

from sglang_adaptive.policy.throughput.acceptance.estimator import AcceptanceEstimator
from sglang_adaptive.policy.throughput.choice.zero_steps import ALLOWANCE, MARGIN, BaselineLossBudget
from sglang_adaptive.policy.throughput.cost.round_times import RoundTimeRow

HOLD_ROUNDS = 0.1
"""What staying must have cost, in rounds, until other steps are taken: a switch costs about as much."""


class StepChoice:
    """Decides before every round that no probe has taken."""

    def __init__(self, live: int, margin: float) -> None:
        """Begin at *live* steps; *margin* is the relative gain that other steps must promise."""
        self.live = live
        """The steps that a decision keeps or leaves; a probe does not change them."""
        self.losses = BaselineLossBudget()
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
        if live_time < math.inf and self.keeps(live_time / least - 1.0, best, acceptance):
            best, least = live, live_time
        if best and row.zero is not None:
            gain = row.zero * slower[0] / least - 1.0
            if gain < MARGIN or (self.losses.lost and gain < self.losses.demands(acceptance.ratio_deviation(0, best))):
                best = 0
        if best == 0 and live and paying and self._bears_with_it(row, acceptance):
            best = paying
        if best != live:
            self.live, self._cost = best, 0.0

    def keeps(self, gain: float, best: int, acceptance: AcceptanceEstimator) -> bool:
        """Take in a round in which *best* steps promise *gain* (relative) over the live ones; say whether these stay.

        One standard deviation of the gain does not count: in a load that does not change chance promises often.
        """
        over = gain - self._margin
        if over > 0.0:
            over -= acceptance.ratio_deviation(self.live, best)
        self._cost = self._cost + over if over > 0.0 else 0.5 * self._cost
        return self._cost < HOLD_ROUNDS

    def _bears_with_it(self, row: RoundTimeRow, acceptance: AcceptanceEstimator) -> bool:
        """Whether usual text pays and little is lost yet: a bad stretch may end soon, and zero steps see it late."""
        if row.zero is None or self.losses.lost >= ALLOWANCE:
            return False
        usual = acceptance.usual_tokens
        return any(usual[steps] * row.zero > (1.0 + MARGIN) * seconds for _, steps, seconds in row.rungs if steps)
