"""When to run other steps for a few rounds to learn about them.

With ``gap`` the estimated relative shortfall of their rate and ``sd`` its uncertainty, a round should improve by

    EI = sd * (phi(u) - u * Q(u)),   u = gap / sd          (phi, Q: density and upper tail of the normal)

the expected improvement of Bayesian optimization (Mockus 1975; Jones, Schonlau and Welch 1998), assumed to hold for
``HORIZON_ROUNDS``. Before a probe starts, a credit must cover what it may lose: ``budget`` of the seconds served, at
most ``ALLOWANCE_ROUNDS`` rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sglang_adaptive.policy.throughput.acceptance import AcceptanceEstimator
from sglang_adaptive.policy.throughput.cost import READING, RoundTimeRow
from sglang_adaptive.policy.throughput.readings import SHORT

HORIZON_ROUNDS = 200.0
"""Rounds for which the result of a probe is assumed to hold."""
LEAST_GAIN_ROUNDS = 1.0
"""Minimum expected gain of a probe, in rounds of the live steps; switching there and back costs a fifth of it."""
PROBE_ROUNDS, TIMINGS = 5, 3
"""Rounds of a probe, and the times that it is expected to yield: its first round is never timed, and a median of three
outvotes an outlier."""
CHECK_ROUNDS = 4
"""Rounds between two checks for a worthwhile probe, of one number of steps each: checking all takes long."""
QUIET_ROUNDS = 6
"""Consecutive rounds at one batch size that a probe waits for: few rounds can be timed while requests come and go.
Without this, steady load at batch 32 sees 67 switches per hour instead of 27 (simulated)."""
ALLOWANCE_ROUNDS = 8.0
"""Maximum and initial credit, in rounds."""
ZERO_ROUNDS, ZERO_USUAL = 32, 16
"""Most and usual rounds of a probe of zero steps. It ends with a cycle of deferred draft extends, which gives one time.
"""
AGAIN_ROUNDS, SURPRISE = 1024, 0.05
"""Rounds until a probe is repeated that yielded no time, or one longer than expected by this share: a prefill may have
ended it, or another job slowed it down. Without this, a probe that ran 1.12 to 2 times as slow excludes the best depth
for good: 0.93 of its rate (simulated)."""
REST_ROUNDS = 51_200
"""Rounds between two probes of the same steps at one batch size, ten minutes or more: with 6,400 a steady load is
probed 30 times per hour and gains nothing (simulated)."""
UNSEEN_ROUNDS = 32
"""Rounds at zero steps without a look at the draft before a probe takes one; with default options shadow accepts come
every 29 rounds at the latest. If none come, a recovering draft is found later with 40 (0.936 instead of 0.953 of the
oracle in the worst drawn trace), and with 24 the worst 500 rounds lose 1.1% (simulated)."""
LEAST_UNSEEN_ROUNDS = 8
"""Minimum rounds between two looks, if a look is expected to lose nothing and zero steps show nothing."""
ALIKE = 0.05
"""Share by which a look may take longer than one at the fewest steps, to see more: blocks are drafted whole."""
_ROOT = math.sqrt(2.0 * math.pi)


def expected_improvement(gap: float, deviation: float) -> float:
    """Return the mean of ``max(0, X)`` for X normal around ``-gap``."""
    if deviation <= 0.0 or gap > 5.0 * deviation:
        return 0.0
    u = gap / deviation
    return deviation * (math.exp(-0.5 * u * u) / _ROOT - u * 0.5 * math.erfc(u / math.sqrt(2.0)))


def _pays(gap: float, doubt: float, rounds: int) -> bool:
    """Whether a probe of *rounds* is expected to gain enough; *doubt* is the relative deviation of its time."""
    learnt = doubt * doubt / math.hypot(doubt, READING / math.sqrt(TIMINGS))
    if HORIZON_ROUNDS * learnt / _ROOT <= LEAST_GAIN_ROUNDS:  # not even without a gap
        return False
    return HORIZON_ROUNDS * expected_improvement(gap, learnt) - rounds * gap > LEAST_GAIN_ROUNDS


class Prober:
    """The current probe, the budget for probes, and where they rest; everything is counted in rounds."""

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.started = 0
        self.lost_seconds = self.served_seconds = 0.0
        self._credit: float | None = None
        self._steps = self._anchor = self._left = 0
        """The current probe's steps, anchor batch size, and remaining rounds."""
        self._unseen = 0
        """Probe rounds whose result has not arrived yet."""
        self._others = False
        """Whether these belong to another rank's probe."""
        self._rests: dict[tuple[int, int], int] = {}
        """By anchor and steps, the round at which the rest ends."""
        self._repeats: dict[tuple[int, int], tuple[float, int, float]] = {}
        """By anchor and steps of every probe so far: the round from which it may be repeated, infinity once it was; the
        live steps; and the expected time relative to theirs."""
        self._batch_size = self._alike = 0
        self._seen_at = 0
        """Round in which the draft's first position was verified or seen, or a probe out of zero steps began."""
        self._hears = True
        """Whether zero steps are assumed to show the draft: not after ``UNSEEN_ROUNDS`` in which they did not."""

    def as_dict(self) -> dict[str, Any]:
        """Return the cost of probes as builtins."""
        share = self.lost_seconds / self.served_seconds if self.served_seconds else 0.0
        return {
            "started": self.started,
            "charged_seconds": self.lost_seconds,
            "share": share,
            "budget": self.budget,
        }

    def inherit_from(self, former: Prober) -> None:
        """Continue from what *former* has spent; its current probe ends."""
        self.started, self.lost_seconds = former.started, former.lost_seconds
        self.served_seconds, self._credit = former.served_seconds, former._credit

    def wanted(self, row: RoundTimeRow) -> int | None:
        """Return the steps that the current probe wants for the coming round; None without a probe."""
        runs = self._left and row.anchor == self._anchor and self._steps in row.allowed
        return self._steps if runs else None

    def take_round(self, row: RoundTimeRow) -> int | None:
        """Return the same, and count the round; a probe that cannot run ends."""
        steps = self.wanted(row)
        if steps is None:
            self._left = 0
            return None
        self._left -= 1
        self._unseen += 1
        return steps

    def yield_round(self, steps: int | None, row: RoundTimeRow, now: int) -> None:
        """Leave the coming round to another rank, which probes *steps*, if any; this rank's probe ends."""
        self._left = 0
        if steps is None:
            return
        self._unseen = self._unseen + 1 if self._others and steps == self._steps else 1
        self._steps, self._others = steps, True
        self._rests[row.anchor, steps] = now + REST_ROUNDS

    def account(self, steps: int, live: int, row: RoundTimeRow, acceptance: AcceptanceEstimator) -> bool:
        """Count a verified round, and charge it if it was a probe's; return whether it was."""
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
        self.lost_seconds += 0.0 if self._others else lost
        self._credit -= lost
        return True

    def draft_seen(self, now: int, at_zero: bool = False) -> None:
        """Note that the draft's first position was verified, or seen at zero steps with *at_zero*."""
        self._seen_at, self._hears = now, self._hears or at_zero

    def consider(
        self,
        row: RoundTimeRow,
        live: int,
        acceptance: AcceptanceEstimator,
        now: int,
        readings: Mapping[tuple[int, int], float],
    ) -> int:
        """Start a probe of the steps whose turn it is, if worthwhile; return its most rounds, 0 without one.

        *readings* is as in ``CostModel``.
        """
        if not self.budget or self._left or now % CHECK_ROUNDS or self._alike < QUIET_ROUNDS:
            return 0
        steps = row.rungs[now // CHECK_ROUNDS % len(row.rungs)][1]
        usual, most = (PROBE_ROUNDS, PROBE_ROUNDS) if steps else (ZERO_USUAL, ZERO_ROUNDS)
        place = row.anchor, steps
        again = self._repeats_probe(place, row, now, readings.get(place, 0.0))
        if (not again and now < self._rests.get(place, 0)) or steps == live or live not in row.seconds:
            return 0
        tokens = acceptance.tokens
        gap = max(0.0, 1.0 - tokens[steps] / row.seconds[steps] * row.seconds[live] / tokens[live])
        if self._credit is None or usual * gap * row.seconds[steps] > self._credit:
            return 0
        if not again and not _pays(gap, row.deviation[steps], usual):
            return 0
        first = place not in self._repeats
        self._repeats[place] = now + AGAIN_ROUNDS if first else math.inf, live, row.seconds[steps] / row.seconds[live]
        self._start(steps, most, row, now)
        return most

    def _repeats_probe(self, place: tuple[int, int], row: RoundTimeRow, now: int, readings: float) -> bool:
        """Whether to repeat the probe of *place*, which has so many *readings* now, whatever the gap."""
        begin, live, expected = self._repeats.get(place, (math.inf, 0, 0.0))
        if now < begin or readings >= SHORT:
            return False
        return not readings or row.seconds[place[1]] > (1.0 + SURPRISE) * expected * row.seconds[live]

    def cycle_ended(self) -> None:
        """End a probe of zero steps, once it had as many rounds as others: a cycle has ended."""
        if not self._steps and self._left and ZERO_ROUNDS - self._left >= PROBE_ROUNDS:
            self._left = 0

    def leave_zero(self, row: RoundTimeRow, acceptance: AcceptanceEstimator, now: int) -> None:
        """Start a one-round probe out of zero steps if the draft was not seen for long.

        If zero steps do not show the draft, the wait is shorter the less the round is expected to lose.
        """
        unseen = now - self._seen_at
        if unseen < LEAST_UNSEEN_ROUNDS or self._left or not self.budget or self._credit is None:
            return
        fewest = next((steps for _, steps, _ in row.rungs if steps), None)
        if fewest is None or row.zero is None:
            return
        most = (1.0 + ALIKE) * row.seconds[fewest]
        steps = max(steps for _, steps, _ in row.rungs if steps and row.seconds[steps] <= most)
        lost = row.seconds[steps] / row.zero - acceptance.tokens[steps]
        wait = UNSEEN_ROUNDS if self._hears else min(UNSEEN_ROUNDS, lost / self.budget)
        if unseen >= wait and row.seconds[steps] - row.zero <= self._credit:
            self._seen_at, self._hears = now, False
            self._start(steps, 1, row, now)

    def _start(self, steps: int, rounds: int, row: RoundTimeRow, now: int) -> None:
        self._rests[row.anchor, steps] = now + REST_ROUNDS
        self._steps, self._anchor, self._left = steps, row.anchor, rounds
        self._unseen, self._others = 0, False
        self.started += 1
