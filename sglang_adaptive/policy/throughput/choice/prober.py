"""When to probe, and at which depth.

Two kinds. *Towards another depth*, whose time or whose deeper positions are not well known. *Out of zero steps*,
where little of the draft is seen: at the smallest positive depth, at growing intervals, and again at once when drafts
were accepted; rarely as long as the first position is heard of without (``RoundObservation.shadow_accepts``).
"""

from __future__ import annotations

import math

from sglang_adaptive.policy.telemetry import ProbeTotals
from sglang_adaptive.policy.throughput.acceptance.estimator import AcceptanceEstimator
from sglang_adaptive.policy.throughput.acceptance.ratio_deviation import learnable_deviation
from sglang_adaptive.policy.throughput.choice.guard import ZeroGuard
from sglang_adaptive.policy.throughput.choice.probing import ALLOWANCE_ROUNDS, Probe, ProbeAccount, expected_improvement
from sglang_adaptive.policy.throughput.cost.views import View, Views

HORIZON_ROUNDS = 200.0
"""Rounds for which what a probe teaches is taken to stay true."""
SWITCH_ROUNDS = 0.2
"""Loss of going there and back, in rounds."""
LEAST_GAIN_ROUNDS = 0.4
"""What a probe must be expected to gain, in rounds of the live depth."""
TIMINGS = 3
"""Times that a probe is to bring: a median of three outvotes an outlier."""
MOST_ROUNDS = 12
"""Rounds of a probe at most, however few of them can be timed."""
READING_DEVIATION = 0.025
"""Relative standard deviation of one reading of a round's time."""
UNTIMED_DEVIATION = 0.012
"""A depth whose time is doubted so much is probed long enough to time it."""
FIRST_CHECK, CHECK_ROUNDS, LATER_CHECK_ROUNDS = 8, 16, 160
"""Rounds to the first check, between two while a batch size is new or acceptance has changed, and later."""
QUIET_ROUNDS, MOST_WAIT = 6, 64
"""Rounds in a row at one batch size that a probe waits for, and rounds that it waits for them at most: while requests
come and go hardly a round can be timed."""
ZERO_PROBE_REQUESTS = 2
"""Drafts that a probe out of zero steps is to try, in as many requests or rounds."""
ZERO_SPACING, MOST_ZERO_SPACING, ZERO_BACKOFF = 12.0, 32.0, 1.25
"""Rounds between two probes out of zero steps at first and at most, and the factor by which each lengthens them."""
HEARING_ROUNDS, HEARD_SPACING = 64, 2000.0
"""Rounds after which the last that was heard is old, and the spacing of probes out of zero steps until then."""


class Prober:
    """The probe under way, and what decides on the next one; everything is counted in rounds."""

    def __init__(self, budget: float) -> None:
        self.account = ProbeAccount(budget)
        self.active: Probe | None = None
        self.waiting = False
        """A probe's times have not been handed over yet."""
        self.timed_share = 1.0
        """Part of the rounds that rank 0 could time lately."""
        self._unsettled: tuple[Probe, int, float] | None = None
        """The latest probe towards another depth, its batch size, and the seconds a round that it could not lose."""
        self._left = 0
        self._batch_size = self._alike = 0
        """Batch size of the latest result, and how many in a row had it."""
        self._next_check = FIRST_CHECK
        self._zero_rounds = 0
        self._zero_spacing = ZERO_SPACING
        self._last_zero_probe = 0
        self._hopeful = False
        self._heard_at = -HEARING_ROUNDS

    @property
    def length(self) -> int:
        """Rounds of a probe that is to be timed; the first after a switch never is."""
        return min(MOST_ROUNDS, 1 + math.ceil(TIMINGS / max(self.timed_share, TIMINGS / MOST_ROUNDS)))

    @property
    def totals(self) -> ProbeTotals:
        """What probes have cost; the latest one's charge is no cost yet while its times are awaited."""
        pending = self._unsettled[0].charge if self._unsettled is not None else 0.0
        return ProbeTotals(self.account.started, self.account.charged_seconds - pending)

    def inherit_from(self, former: Prober) -> None:
        """Go on from what *former* has spent; a probe of its own ends."""
        self.account.inherit_from(former.account, former.totals.lost_seconds)
        self.timed_share = former.timed_share

    def take_round(self, view: View, live: int) -> int | None:
        """Return the depth that the probe wants for the round about to start, None without a probe."""
        probe = self.active
        if probe is None:
            return None
        # Batch sizes of one anchor may be padded to different graphs, and not each has one at the probe's depth.
        if not self._left or view.anchor != probe.anchor or probe.steps not in view.allowed:
            self.active = None
            return None
        self._left -= 1
        if live == 0:
            self._zero_rounds += 1
        return probe.steps

    def claims(self, steps: int, live: int) -> bool:
        """Whether a round that has just been verified was a probe out of zero steps."""
        if live or not steps or not self._zero_rounds:
            return False
        self._zero_rounds -= 1
        return True

    def heard(self, round_index: int) -> None:
        """Take in that the draft's first position was seen at zero steps, without a probe."""
        self._heard_at = round_index

    def encouraged(self, hopeful: bool) -> None:
        """Take in whether a probe out of zero steps found accepted drafts."""
        self._hopeful = hopeful

    def left_zero(self) -> None:
        """Start with short intervals at the next stay at zero steps."""
        self._zero_spacing, self._zero_rounds, self._hopeful = ZERO_SPACING, 0, False

    def settle(self, views: Views) -> None:
        """Take note that times were handed over, and charge the latest probe what they say that it lost."""
        if self.active is not None:
            return
        self.waiting = False
        if self._unsettled is not None:
            probe, batch_size, free = self._unsettled
            self._unsettled = None
            lost = probe.rounds * max(0.0, views.at(batch_size).seconds[probe.steps] - free)
            self.account.refund(max(0.0, probe.charge - lost))

    def refresh(self, round_index: int) -> None:
        """Look again soon: acceptance has changed."""
        self.account.refresh()
        self._next_check = min(self._next_check, round_index + FIRST_CHECK)

    def follow(self, batch_size: int) -> None:
        """Take in the batch size of a result."""
        self._alike = self._alike + 1 if batch_size == self._batch_size else 1
        self._batch_size = batch_size

    def due(self, round_index: int) -> bool:
        """Whether it is time to consider a probe."""
        late = round_index - self._next_check
        quiet = self._alike >= QUIET_ROUNDS or late >= MOST_WAIT
        return late >= 0 and quiet and self.active is None and not self.waiting

    def consider(
        self, view: View, batch_size: int, live: int, acceptance: AcceptanceEstimator, round_index: int
    ) -> bool:
        """Start the probe towards another depth that promises most, if any pays; say whether one started."""
        learning = self.account.learning(view.anchor, round_index)
        self._next_check = round_index + (CHECK_ROUNDS if learning else LATER_CHECK_ROUNDS)
        if live not in view.seconds or not self.account.rested(view.anchor, round_index):
            return False
        chosen, most = None, LEAST_GAIN_ROUNDS
        for steps in sorted(view.allowed - {live}):
            gain = self._gain(steps, live, view, batch_size, acceptance)
            if gain > most:
                probe, free = self._towards(steps, live, view, acceptance)
                if self.account.affords(probe):
                    chosen, most = (probe, batch_size, free), gain
        if chosen is None:
            return False
        self.account.rest(view.anchor, round_index)
        self._unsettled, self.waiting = chosen, True
        self._start(chosen[0])
        return True

    def consider_leaving_zero(self, view: View, batch_size: int, guard: ZeroGuard, round_index: int) -> None:
        """Start a probe out of zero steps when one is due."""
        self._next_check = round_index + 1
        depths = [(steps, seconds) for steps, seconds in view.pairs if steps]
        if not depths or view.zero is None:
            return
        steps, seconds = depths[0]
        unknown = view.deviation[steps] > UNTIMED_DEVIATION
        rounds = max(1, math.ceil(ZERO_PROBE_REQUESTS / batch_size))
        round_loss = max(0.0, seconds / view.zero - 1.0)
        # Long enough to be timed where that is wanted, unless such a probe could never be paid for.
        timed = unknown and self.length * round_loss <= ALLOWANCE_ROUNDS
        if timed:
            rounds = self.length
        loss = rounds * round_loss
        spacing = 0.0 if self._hopeful else max(self._zero_spacing, guard.spacing(loss))
        if not timed and round_index - self._heard_at < HEARING_ROUNDS:
            spacing = HEARD_SPACING
        probe = Probe(steps, rounds, view.anchor, loss * view.zero)
        if round_index - self._last_zero_probe >= spacing and self.account.affords(probe):
            self._hopeful = False
            self._last_zero_probe = round_index
            self._zero_spacing = min(MOST_ZERO_SPACING, self._zero_spacing * ZERO_BACKOFF)
            self._start(probe)

    def _gain(self, steps: int, live: int, view: View, batch_size: int, acceptance: AcceptanceEstimator) -> float:
        """Return what a probe of *steps* is expected to gain, in rounds of the live depth."""
        tokens, seconds = acceptance.tokens, view.seconds
        gap = max(0.0, 1.0 - tokens[steps] / seconds[steps] * seconds[live] / tokens[live])
        doubt = view.deviation[steps]
        # A few readings do not settle all of the doubt.
        by_time = doubt * doubt / math.hypot(doubt, READING_DEVIATION / math.sqrt(TIMINGS))
        by_drafts = learnable_deviation(acceptance, steps, live, self.length, batch_size)
        gained = HORIZON_ROUNDS * expected_improvement(gap, math.hypot(by_time, by_drafts))
        return gained - self.length * gap - SWITCH_ROUNDS

    def _towards(self, steps: int, live: int, view: View, acceptance: AcceptanceEstimator) -> tuple[Probe, float]:
        """Return the probe, and the seconds a round that pay for themselves: positions already known are accepted."""
        free = acceptance.tokens[min(steps, live)] * view.seconds[live] / acceptance.tokens[live]
        return Probe(steps, self.length, view.anchor, self.length * max(0.0, view.at_most[steps] - free)), free

    def _start(self, probe: Probe) -> None:
        self.account.pay(probe)
        self.active, self._left = probe, probe.rounds
