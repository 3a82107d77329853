"""The steps that decisions keep or take: those that the batch's text is done soonest with, if that is sure enough."""

from __future__ import annotations

import math

from sglang_adaptive.policy.throughput.acceptance.estimator import AcceptanceEstimator
from sglang_adaptive.policy.throughput.choice.hysteresis import SwitchHysteresis
from sglang_adaptive.policy.throughput.choice.zero_steps import ALLOWANCE, MARGIN, STAY_ROUNDS, BaselineLossBudget
from sglang_adaptive.policy.throughput.cost.round_times import RoundTimeRow


class StepChoice:
    """Decides before every round that no probe has taken."""

    def __init__(self, live: int, margin: float) -> None:
        """Begin at *live* steps; *margin* is the relative gain that other steps must promise."""
        self.live = live
        """The steps that a decision keeps or leaves; a probe does not change them."""
        self.hysteresis = SwitchHysteresis(margin)
        self.losses = BaselineLossBudget()
        self.undecided = False
        """Whether zero steps stay for want of certainty alone."""
        self._zero_since = -STAY_ROUNDS

    def decide(self, row: RoundTimeRow, acceptance: AcceptanceEstimator, now: int) -> None:
        """Keep the live steps or take others, in round *now*."""
        steps = self._best(row, acceptance, now)
        if steps == 0 and self.live and self._bears_with_it(row, acceptance):
            slower = acceptance.slower(self.live)
            steps = min((seconds * slower[rung], steps) for rung, steps, seconds in row.rungs if steps)[1]
        if steps != self.live:
            self.live = steps
            self.hysteresis.restart()
            if steps == 0:
                self._zero_since = now

    def _best(self, row: RoundTimeRow, acceptance: AcceptanceEstimator, now: int) -> int:
        self.undecided = False
        live, slower = self.live, acceptance.slower(self.live)
        best, least, live_time = live, math.inf, math.inf
        for rung, steps, seconds in row.rungs:
            time = seconds * slower[rung]
            if steps == live:
                live_time = time
            if time < least:
                best, least = steps, time
        if live_time < math.inf and self.hysteresis.keeps(live_time / least - 1.0, live, best, acceptance):
            best, least = live, live_time
        if (
            best
            and row.zero is not None
            and not self._beats_zero(row.zero * slower[0] / least - 1.0, best, acceptance, now)
        ):
            return 0
        return best

    def _beats_zero(self, gain: float, steps: int, acceptance: AcceptanceEstimator, now: int) -> bool:
        """Whether a gain over zero steps is enough to speculate; leaving zero takes twice the margin."""
        if self.live == 0 and now - self._zero_since < STAY_ROUNDS:
            return False
        if gain < (MARGIN if self.live else 2.0 * MARGIN):
            return False
        self.undecided = self.losses.lost > 0.0 and gain < self.losses.demands(acceptance.ratio_deviation(0, steps))
        return not self.undecided

    def _bears_with_it(self, row: RoundTimeRow, acceptance: AcceptanceEstimator) -> bool:
        """Whether usual text pays and little is lost yet: a bad stretch may end soon, and zero steps see it late."""
        if row.zero is None or self.losses.lost >= ALLOWANCE or len(row.rungs) < 2:
            return False
        usual = acceptance.usual_tokens
        return any(usual[steps] * row.zero > (1.0 + MARGIN) * seconds for _, steps, seconds in row.rungs if steps)
