"""When to run other steps for a few rounds in order to learn about them.

With ``gap`` the believed shortfall of their rate, as a share, and ``sd`` the doubt about it, a round is expected to
improve by

    EI = sd * (phi(u) - u * Q(u)),   u = gap / sd          (phi, Q: density and upper tail of the normal)

the expected improvement of Bayesian optimisation (Mockus 1975; Jones, Schonlau and Welch 1998), taken to hold for
``HORIZON_ROUNDS``. Before a probe starts, the most that it may lose must be in the credit: ``budget`` of the seconds
served, at most ``ALLOWANCE_ROUNDS`` rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sglang_adaptive.policy.telemetry import ProbeTotals
from sglang_adaptive.policy.throughput.acceptance.estimator import AcceptanceEstimator
from sglang_adaptive.policy.throughput.choice.zero_steps import BaselineLossBudget
from sglang_adaptive.policy.throughput.cost.model import READING
from sglang_adaptive.policy.throughput.cost.round_times import RoundTimeRow

HORIZON_ROUNDS = 200.0
"""Rounds for which what a probe teaches is taken to stay true."""
LEAST_GAIN_ROUNDS = 1.0
"""What a probe must be expected to gain, in rounds of the live steps; going there and back costs a fifth of it."""
TIMINGS, MOST_ROUNDS = 3, 12
"""Times that a probe is to bring, for a median of three outvotes an outlier, and its rounds at most."""
CHECK_ROUNDS = 16
"""Rounds between two looks for a probe that is worth it."""
QUIET_ROUNDS = 6
"""Rounds in a row at one batch size that a probe waits for: while requests come and go hardly a round can be timed."""
ALLOWANCE_ROUNDS = 8.0
"""Rounds that the credit holds at most, and at the start."""
REST_ROUNDS, LONGER, LONGEST = 6400, 8, 51_200
"""Rounds between two probes of the same steps at one batch size: at first, the factor each time, and at most."""
OTHER_TEXT = 0.2
"""Change of the usual level of requests after which a rest is over: what the probe taught was of other text."""
UNSEEN_ROUNDS, SEEN_SPACING, ZERO_SPACING = 64, 2000.0, 24.0
"""At zero steps: rounds after which shadow acceptance is no longer fresh; rounds between probes while it is, and at
least while it is not."""
UNTIMED, ZERO_REQUESTS = 0.012, 2
"""Relative standard deviation from which on a probe out of zero steps is long enough to time its steps; requests that
one tries otherwise, in as many rounds as that takes."""
_ROOT = math.sqrt(2.0 * math.pi)


def expected_improvement(gap: float, deviation: float) -> float:
    """Return the mean of ``max(0, X)`` for X normal around ``-gap``."""
    if deviation <= 0.0 or gap > 5.0 * deviation:
        return 0.0
    u = gap / deviation
    return deviation * (math.exp(-0.5 * u * u) / _ROOT - u * 0.5 * math.erfc(u / math.sqrt(2.0)))


class Prober:
    """The probe under way, what probes may cost, and where they rest; everything is counted in rounds."""

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.started = 0
        self.lost_seconds = self.served_seconds = 0.0
        self.timed_share = 1.0
        """Part of the rounds that rank 0 could time lately."""
        self._credit: float | None = None
        self._steps = self._anchor = self._left = self._unseen = 0
        self._rests: dict[tuple[int, int], tuple[int, int, float]] = {}
        """By anchor and steps: the round at which the rest ends, the length of the next, the usual level then."""
        self._batch_size = self._alike = 0
        self._next_check = CHECK_ROUNDS
        self._seen_at = -UNSEEN_ROUNDS
        self._zero_probe_at = 0

    @property
    def length(self) -> int:
        """Rounds of a probe; the first after a change of steps is never timed."""
        return min(MOST_ROUNDS, 1 + math.ceil(TIMINGS / max(self.timed_share, TIMINGS / MOST_ROUNDS)))

    @property
    def totals(self) -> ProbeTotals:
        """What probes have cost."""
        return ProbeTotals(self.started, self.lost_seconds)

    def inherit_from(self, former: Prober) -> None:
        """Go on from what *former* has spent; a probe of its own ends."""
        self.started, self.lost_seconds = former.started, former.lost_seconds
        self.served_seconds, self._credit, self.timed_share = former.served_seconds, former._credit, former.timed_share

    def take_round(self, row: RoundTimeRow) -> int | None:
        """Return the steps that the probe wants for the round about to start, None without a probe."""
        if not self._left:
            return None
        if row.anchor != self._anchor or self._steps not in row.allowed:
            self._left = 0
            return None
        self._left -= 1
        self._unseen += 1
        return self._steps

    def follow(self, steps: int, live: int, row: RoundTimeRow, acceptance: AcceptanceEstimator) -> bool:
        """Take in a verified round, and charge it if it was a probe's; say whether it was."""
        batch_size = row.padded
        self._alike = self._alike + 1 if batch_size == self._batch_size else 1
        self._batch_size = batch_size
        seconds = row.seconds.get(steps, 0.0)
        self.served_seconds += seconds
        full = ALLOWANCE_ROUNDS * seconds
        if self._credit is None:
            self._credit = full
        elif self._credit < full:
            self._credit = min(full, self._credit + self.budget * seconds)
        if not self._unseen or steps != self._steps or steps == live:
            return False
        self._unseen -= 1
        tokens = acceptance.tokens
        lost = max(0.0, seconds - row.seconds.get(live, seconds) * tokens[steps] / tokens[live])
        self.lost_seconds += lost
        self._credit -= lost
        return True

    def shadow_seen(self, now: int) -> None:
        """Take in that the first position was seen at zero steps, without a probe."""
        self._seen_at = now

    def consider(self, row: RoundTimeRow, live: int, acceptance: AcceptanceEstimator, now: int) -> bool:
        """Start the probe towards other steps that is worth most, if one is; say whether one started."""
        if not self.budget or self._left or now < self._next_check or self._alike < QUIET_ROUNDS:
            return False
        self._next_check = now + CHECK_ROUNDS
        if live not in row.seconds:
            return False
        chosen, most, tokens = None, LEAST_GAIN_ROUNDS, acceptance.tokens
        for steps in sorted(row.allowed - {live}):
            until, _, level = self._rests.get((row.anchor, steps), (0, 0, 0.0))
            if now < until and abs(acceptance.levels.usual - level) < OTHER_TEXT:
                continue
            gain = self._gain(steps, live, row, acceptance, tokens)
            if gain > most and self._affords(steps, live, row, tokens):
                chosen, most = steps, gain
        if chosen is not None:
            self._start(chosen, self.length, row, acceptance, now)
        return chosen is not None

    def leave_zero(
        self, row: RoundTimeRow, acceptance: AcceptanceEstimator, lost: BaselineLossBudget, now: int
    ) -> None:
        """Start a probe out of zero steps when one is due: of the fewest steps, long enough to time them or not."""
        positive = [steps for _, steps, _ in row.rungs if steps]
        if self._left or not self.budget or not positive or row.zero is None or self._credit is None:
            return
        steps = positive[0]
        round_loss = max(0.0, row.seconds[steps] / row.zero - 1.0)
        timed = row.deviation[steps] > UNTIMED and self.length * round_loss <= ALLOWANCE_ROUNDS
        rounds = self.length if timed else max(1, math.ceil(ZERO_REQUESTS / row.padded))
        spacing = max(ZERO_SPACING, lost.spacing(rounds * round_loss))
        if not timed and now - self._seen_at < UNSEEN_ROUNDS:
            spacing = SEEN_SPACING
        if now - self._zero_probe_at >= spacing and rounds * round_loss * row.zero <= self._credit:
            self._zero_probe_at = now
            self._start(steps, rounds, row, acceptance, now)

    def _gain(
        self, steps: int, live: int, row: RoundTimeRow, acceptance: AcceptanceEstimator, tokens: Sequence[float]
    ) -> float:
        """Return what a probe of *steps* is expected to gain, in rounds of the live steps."""
        seconds, length = row.seconds, self.length
        gap = max(0.0, 1.0 - tokens[steps] / seconds[steps] * seconds[live] / tokens[live])
        doubt = row.deviation[steps]
        by_time = doubt * doubt / math.hypot(doubt, READING / math.sqrt(TIMINGS))
        by_drafts = acceptance.learnable_deviation(live, steps, length * row.padded)
        return HORIZON_ROUNDS * expected_improvement(gap, math.hypot(by_time, by_drafts)) - length * gap

    def _affords(self, steps: int, live: int, row: RoundTimeRow, tokens: Sequence[float]) -> bool:
        """Whether the credit covers the most that a probe may lose: only positions that the live steps have count."""
        free = row.seconds[live] * tokens[min(steps, live)] / tokens[live]
        slowest = row.seconds[steps] * math.exp(2.0 * row.deviation[steps])
        return self._credit is not None and self.length * max(0.0, slowest - free) <= self._credit

    def _start(self, steps: int, rounds: int, row: RoundTimeRow, acceptance: AcceptanceEstimator, now: int) -> None:
        _, length, _ = self._rests.get((row.anchor, steps), (0, REST_ROUNDS, 0.0))
        self._rests[row.anchor, steps] = (now + length, min(LONGEST, LONGER * length), acceptance.levels.usual)
        self._steps, self._anchor, self._left = steps, row.anchor, rounds
        self._unseen = 0
        self.started += 1
