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
CHECK_ROUNDS = 4
"""Rounds between two looks for a probe that is worth it, of one number of steps each: to look at all takes long."""
QUIET_ROUNDS = 6
"""Rounds in a row at one batch size that a probe waits for: while requests come and go hardly a round can be timed.
Without, steady load at batch 32 sees 67 switches an hour and not 27 (simulated)."""
ALLOWANCE_ROUNDS = 8.0
"""Rounds that the credit holds at most, and at the start."""
REST_ROUNDS = 51_200
"""Rounds between two probes of the same steps at one batch size, ten minutes and more: with 6,400 a steady load is
probed 30 times an hour, and gains nothing (simulated)."""
OTHER_TEXT = 0.2
"""Change of the usual level of requests after which a rest is over: what the probe taught was of other text."""
UNSEEN_ROUNDS, SEEN_SPACING, ZERO_SPACING = 64, 2000.0, 24.0
"""At zero steps: rounds after which shadow acceptance is no longer fresh; rounds between probes while it is, and at
least while it is not."""
ZERO_REQUESTS = 2
"""Requests that a probe out of zero steps tries, in as many rounds as that takes."""
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
        self._rests: dict[tuple[int, int], tuple[int, float]] = {}
        """By anchor and steps: the round at which the rest ends, and the usual level when it began."""
        self._heard = False
        """Whether the rounds that are not seen yet are of another rank's probe."""
        self._batch_size = self._alike = 0
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

    def wanted(self, row: RoundTimeRow) -> int | None:
        """Return the steps that the probe wants for the round about to start, None without a probe."""
        runs = self._left and row.anchor == self._anchor and self._steps in row.allowed
        return self._steps if runs else None

    def take_round(self, row: RoundTimeRow) -> int | None:
        """Return the same, and count the round; a probe that cannot run is over."""
        steps = self.wanted(row)
        if steps is None:
            self._left = 0
            return None
        self._left -= 1
        self._unseen += 1
        return steps

    def hear(self, steps: int | None, row: RoundTimeRow, acceptance: AcceptanceEstimator, now: int) -> None:
        """Take in that another rank decides on the coming round, and *steps* that it tries; its own probe is over."""
        self._left = 0
        if steps is None:
            return
        self._unseen = self._unseen + 1 if self._heard and steps == self._steps else 1
        self._steps, self._heard = steps, True
        self._rests[row.anchor, steps] = now + REST_ROUNDS, acceptance.levels.usual

    def follow(self, steps: int, live: int, row: RoundTimeRow, acceptance: AcceptanceEstimator) -> bool:
        """Take in a verified round, and charge it if it was a probe's; say whether it was."""
        self._alike = self._alike + 1 if row.padded == self._batch_size else 1
        self._batch_size = row.padded
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
        self.lost_seconds += 0.0 if self._heard else lost
        self._credit -= lost
        return True

    def shadow_seen(self, now: int) -> None:
        """Take in that the first position was seen at zero steps, without a probe."""
        self._seen_at = now

    def consider(self, row: RoundTimeRow, live: int, acceptance: AcceptanceEstimator, now: int) -> bool:
        """Start a probe towards the other steps whose turn it is if that is worth it; say whether it was."""
        if not self.budget or self._left or now % CHECK_ROUNDS or self._alike < QUIET_ROUNDS:
            return False
        steps = row.rungs[now // CHECK_ROUNDS % len(row.rungs)][1]
        until, level = self._rests.get((row.anchor, steps), (0, 0.0))
        rests = now < until and abs(acceptance.levels.usual - level) < OTHER_TEXT
        if rests or steps == live or live not in row.seconds or not self._pays(steps, live, row, acceptance):
            return False
        self._start(steps, self.length, row, acceptance, now)
        return True

    def leave_zero(
        self, row: RoundTimeRow, acceptance: AcceptanceEstimator, lost: BaselineLossBudget, now: int
    ) -> None:
        """Start a probe of the fewest steps out of zero steps when one is due."""
        positive = [steps for _, steps, _ in row.rungs if steps]
        if self._left or not self.budget or not positive or row.zero is None or self._credit is None:
            return
        steps, rounds = positive[0], max(1, math.ceil(ZERO_REQUESTS / row.padded))
        loss = rounds * max(0.0, row.seconds[steps] / row.zero - 1.0)
        seen = now - self._seen_at < UNSEEN_ROUNDS
        spacing = SEEN_SPACING if seen else max(ZERO_SPACING, lost.spacing(loss))
        if now - self._zero_probe_at >= spacing and loss * row.zero <= self._credit:
            self._zero_probe_at = now
            self._start(steps, rounds, row, acceptance, now)

    def _pays(self, steps: int, live: int, row: RoundTimeRow, acceptance: AcceptanceEstimator) -> bool:
        """Whether a probe is expected to gain enough, and the credit covers what it is expected to lose."""
        doubt = row.deviation[steps]
        learnt = doubt * doubt / math.hypot(doubt, READING / math.sqrt(TIMINGS))
        if HORIZON_ROUNDS * learnt / _ROOT <= LEAST_GAIN_ROUNDS:  # not even without a gap
            return False
        seconds, length, tokens = row.seconds, self.length, acceptance.tokens
        gap = max(0.0, 1.0 - tokens[steps] / seconds[steps] * seconds[live] / tokens[live])
        if self._credit is None or length * gap * seconds[steps] > self._credit:
            return False
        return HORIZON_ROUNDS * expected_improvement(gap, learnt) - length * gap > LEAST_GAIN_ROUNDS

    def _start(self, steps: int, rounds: int, row: RoundTimeRow, acceptance: AcceptanceEstimator, now: int) -> None:
        self._rests[row.anchor, steps] = now + REST_ROUNDS, acceptance.levels.usual
        self._steps, self._anchor, self._left = steps, row.anchor, rounds
        self._unseen, self._heard = 0, False
        self.started += 1
