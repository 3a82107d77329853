"""When to run other steps for a few rounds to learn about them.

A *probe* is worth it if it may find something better soon: the expected improvement of Bayesian optimization (Jones,
Schonlau and Welch 1998). That trusts the estimates. A *look*, a short probe, does not: it is due where steps were not
timed for long, so that no wrong belief and no change stays unnoticed, and the sooner the less it costs. Before either
starts, a credit must cover what it is expected to lose.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from sglang_adaptive.policy.throughput.acceptance import EVERY, AcceptanceEstimator
from sglang_adaptive.policy.throughput.base_cost import PROFILED, nearness
from sglang_adaptive.policy.throughput.cost import CostModel
from sglang_adaptive.policy.throughput.readings import CHANGED
from sglang_adaptive.policy.throughput.rows import RoundTimeRow, RoundTimeTable

HORIZON_ROUNDS = 100.0
"""Rounds for which the result of a probe is assumed to hold. Without probes spells of 2 cost 0.03 (emulated)."""
LEAST_GAIN_ROUNDS = 1.0
"""Minimum expected gain of a probe, in rounds of the live steps, and the credit that probes leave to looks."""
PROBE_ROUNDS = 4
LOOK_ROUNDS = PROBE_ROUNDS // 2
"""Readings that end a probe and a look; either ends after twice as many rounds, because requests may come or leave.
Both begin after PROBE_ROUNDS at one batch size: few rounds can be timed while requests come and go."""
ZERO_ROUNDS = 4 * PROBE_ROUNDS
"""Most rounds of a probe of zero steps. It ends with a cycle of deferred draft extends, which gives one time."""
LOOK_CHECK_ROUNDS = 4 * EVERY
"""Rounds between two checks for a look: they take long. Those for a worthwhile probe, of one number of steps each, come
with new estimates of acceptance."""
ALLOWANCE_ROUNDS = 3.0
"""Maximum and initial credit, in rounds. With 8 zero steps lose 2% of the worst 500 rounds (simulated)."""
FIRST = 600.0
"""Rounds until positions beyond the live steps are looked at, because acceptance there may have changed, and rounds at
a batch size, per round that a look costs, until steps that never ran there are. With 400 a right profile costs 0.3% of
2,000 rounds, with 2,000 one that is off by 15% in each cell loses 1% more (simulated)."""
REST, MOST_REST = 4000.0, 3.0 * FIRST
"""The same for steps that ran, and the most rounds; both double after a look. Positions far beyond the live steps wait
for half of the first. If they wait like other steps, a busy host has 0.001 less (recorded noise)."""
PAUSE = int(0.5 * FIRST)
"""Rounds between two looks at steps that ran before. Without it, the emulated replay loses 0.0015."""
LEAST_COST = 0.1
"""Added to what a look is expected to lose, in rounds. Without it one of 60 drawn machines that change stays at 0.82
instead of 0.93 of the best steps, and spells of 1.5 cost 0.01 (emulated)."""
UNSEEN_ROUNDS = 2 * ZERO_ROUNDS
"""Rounds at zero steps without a look at the draft before a probe takes one; fewer, at least 2 * PROBE_ROUNDS, if it is
expected to lose little and zero steps show nothing. With default options shadow accepts come every 29 rounds at the
latest. With 40 a recovering draft is found later (0.936 instead of 0.953 of the oracle in the worst drawn trace), and
with 24 the worst 500 rounds lose 1.1% (simulated)."""
_ROOT = math.sqrt(2.0 * math.pi)


def expected_improvement(gap: float, deviation: float) -> float:
    """Return the mean of ``max(0, X)`` for X normal around ``-gap``."""
    if deviation <= 0.0 or gap > 5.0 * deviation:
        return 0.0
    u = gap / deviation
    return deviation * (math.exp(-0.5 * u * u) / _ROOT - u * 0.5 * math.erfc(u / math.sqrt(2.0)))


def probe_gain(gap: float, doubt: float, noise: float, tokens: float) -> float:
    """Return the rounds that a probe is expected to gain over HORIZON_ROUNDS, 0 if too few.

    The relative deviations are of the steps' time, of a difference in times, and of the tokens of a round.
    """
    learnt = math.hypot(doubt * doubt / math.hypot(doubt, 2.0 * noise), 0.7 * tokens)
    if HORIZON_ROUNDS * learnt / _ROOT <= LEAST_GAIN_ROUNDS:  # not even without a gap
        return 0.0
    gain = HORIZON_ROUNDS * expected_improvement(gap, learnt) - PROBE_ROUNDS * gap
    return gain if gain > LEAST_GAIN_ROUNDS else 0.0


def _novelty(anchor: int, known: Iterable[int]) -> float:
    """Return how little other batch sizes say about *anchor*: 1 if there are none, 0.5 for half or twice as many."""
    return 1.0 - max((nearness(anchor, other) for other in known), default=0.0)


class _ProbeRound(NamedTuple):
    """A round of a probe."""

    batch_size: int
    steps: int
    live: int
    gain: float
    """Its tokens over those of the live steps."""
    longer: float
    """Its time over that of the live steps, as measured before its readings came; 0 if unknown."""
    own: bool
    """Whether this rank chose it."""


class Prober:
    """The current probe, the budget for probes, and when each depth was last seen."""

    def __init__(self, budget: float, acceptance: AcceptanceEstimator, cost: CostModel) -> None:
        self.budget, self._acceptance, self._cost = budget, acceptance, cost
        self.started = 0
        self.lost_seconds = self.served_seconds = 0.0
        self._credits: dict[int, float] = {}
        """Seconds by anchor."""
        self._steps = self._anchor = self._left = self._wanted = 0
        """The current probe's steps, anchor batch size, remaining rounds, and readings that end it."""
        self._unseen, self._others = 0, False
        """Probe rounds whose result has not arrived yet, and whether they belong to another rank's probe."""
        self._owed: list[_ProbeRound] = []
        """Probe rounds that are not charged yet."""
        self._rounds: dict[int, int] = {}
        """Rounds by anchor."""
        self._seen: dict[tuple[int, int], int] = {}
        """By anchor and steps, the count of the anchor's rounds when they were last timed there."""
        self._followed: dict[tuple[int, int, int], float] = {}
        """The lone differences that looks have followed (see ``_disputes``)."""
        self._looks: set[tuple[int, int]] = set()
        """Anchors and steps that were probed or looked at."""
        self._drafted: dict[int, int] = {}
        """By steps, the last round that drafted as many."""
        self._saving, self._next_look = False, 0
        """Whether a look is due, and the first round of the next one at steps that ran before."""
        self._batch_size = self._alike = 0
        self._seen_at, self._hears = 0, True
        """Round in which the draft's first position was verified or seen, or a probe out of zero steps began, and
        whether zero steps are assumed to show the draft: not after ``UNSEEN_ROUNDS`` in which they did not."""

    def as_dict(self) -> dict[str, Any]:
        """Return the cost of probes as builtins."""
        share = self.lost_seconds / self.served_seconds if self.served_seconds else 0.0
        return {"started": self.started, "charged_seconds": self.lost_seconds, "share": share, "budget": self.budget}

    def inherit_from(self, former: Prober) -> None:
        """Continue from what *former* has spent; its current probe ends."""
        self.started, self.lost_seconds = former.started, former.lost_seconds
        self.served_seconds, self._credits = former.served_seconds, former._credits

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

    def yield_round(self, steps: int | None) -> None:
        """Leave the coming round to another rank, which probes *steps*, if any; this rank's probe ends."""
        self._left = 0
        if steps is not None:
            self._unseen = self._unseen + 1 if self._others and steps == self._steps else 1
            self._steps, self._others = steps, True

    def saw(self, steps: int, row: RoundTimeRow, now: int, timed: bool, extended: bool) -> bool:
        """Note the result of any round, whoever chose it; return whether it ends the current probe.

        *timed* and *extended* are as in ``RoundObservation``.
        """
        count = self._rounds[row.anchor] = self._rounds.get(row.anchor, 0) + 1
        self._drafted[steps] = now
        if not timed:
            return False
        self._seen[row.anchor, steps] = count
        if not self._left or steps != self._steps:
            return False
        self._wanted -= 1
        if (extended and not steps) or self._wanted <= 0 < steps:
            self._left = 0
        return not self._left

    def account(self, steps: int, live: int, row: RoundTimeRow) -> None:
        """Count a verified round, and note it if it was a probe's."""
        self._alike = self._alike + 1 if row.padded == self._batch_size else 1
        self._batch_size = row.padded
        seconds = row.seconds.get(steps, 0.0)
        self.served_seconds += seconds
        most, credit = ALLOWANCE_ROUNDS * seconds, self._credits.get(row.anchor)
        if credit is None:
            credit = most * _novelty(row.anchor, self._credits)
        self._credits[row.anchor] = min(most, credit + self.budget * seconds)
        if self._unseen and steps == self._steps != live:
            self._unseen -= 1
            tokens = self._acceptance.tokens
            known = live in row.seconds and (row.anchor, steps) in self._cost.readings
            longer = seconds / row.seconds[live] if known else 0.0
            self._owed.append(
                _ProbeRound(row.padded, steps, live, tokens[steps] / tokens[live], longer, not self._others)
            )

    def settle(self, times: RoundTimeTable) -> None:
        """Charge the latest probe, now that *times* have its readings, with what it lost.

        Charged with what it might have lost, a wrong belief about 64 requests used up the credit for 5,000 rounds, at
        0.75 of the best steps (emulated). If one time has changed, others may have: the worst of 100 drawn machines
        that change has 0.91 of the best steps instead of 0.76.
        """
        for one in self._owed:
            row = times.at(one.batch_size)
            if not {one.steps, one.live} <= row.seconds.keys():
                continue  # another configuration's
            usual, seconds = row.seconds[one.live], row.seconds[one.steps]
            if one.longer and abs(math.log(seconds / usual / one.longer)) > CHANGED:
                self._doubt_others(row.anchor, one)
            for low, high, longer in self._cost.lone(row.anchor):
                if {low, high} == {one.steps, one.live}:
                    seconds = usual * math.exp(longer if high == one.steps else -longer)
            lost = max(0.0, seconds - usual * one.gain)
            self.lost_seconds += lost if one.own else 0.0
            # A deeper debt would end probes for long where they are needed the most.
            self._credits[row.anchor] = max(-ALLOWANCE_ROUNDS * usual, self._credits[row.anchor] - lost)
        self._owed.clear()

    def _doubt_others(self, anchor: int, known: _ProbeRound) -> None:
        """Let all steps but those of a probe be looked at soon."""
        for place, seen in self._seen.items():
            if place[0] == anchor and place[1] not in (known.steps, known.live):
                self._seen[place] = min(seen, self._rounds[anchor] - int(2.0 * MOST_REST))
        self._next_look = 0

    def draft_seen(self, now: int, at_zero: bool = False) -> None:
        """Note that the draft's first position was verified, or seen at zero steps with *at_zero*."""
        self._seen_at, self._hears = now, self._hears or at_zero

    def consider(self, row: RoundTimeRow, live: int, now: int) -> int:
        """Start a probe or a look if worthwhile; return its most rounds, 0 without one."""
        if not self.budget or self._left or self._owed or now % EVERY or self._alike < PROBE_ROUNDS:
            return 0
        if live not in row.seconds or row.anchor not in self._credits:
            return 0
        credit = self._credits[row.anchor] / row.seconds[live]
        steps = row.rungs[now // EVERY % len(row.rungs)][1]
        if steps != live:
            gap, lost = self._shortfall(steps, live, row)
            deeper = self._acceptance.ratio_deviation(live, steps) if steps > live > 0 else 0.0
            gain = probe_gain(gap, row.deviation[steps], row.noise, deeper)
            rounds = PROBE_ROUNDS + 1 if steps else ZERO_ROUNDS
            if gain and _affordable(rounds * lost + LEAST_GAIN_ROUNDS, credit):
                return self._start(steps, PROBE_ROUNDS, 2 * PROBE_ROUNDS if steps else ZERO_ROUNDS, row)
        return 0 if now % LOOK_CHECK_ROUNDS else self._consider_look(row, live, now, credit)

    def _consider_look(self, row: RoundTimeRow, live: int, now: int, credit: float) -> int:
        """Start the look that is overdue the most, if the credit covers it."""
        readings, next_deeper, disputes = self._cost.readings, FIRST, self._disputes(row)
        self._saving, most, chosen = False, 1.0, None
        for _, steps, _ in row.rungs:
            if steps == live:
                continue
            place = row.anchor, steps
            _, lost = self._shortfall(steps, live, row)
            cost = (LOOK_ROUNDS if steps else LOOK_ROUNDS + 1) * lost + LEAST_COST
            rest = min(MOST_REST, REST * cost) * (2.0 if place in self._looks else 1.0)
            first = place not in readings and place not in self._looks
            if first:
                novelty = _novelty(row.anchor, (anchor for anchor, kind in readings if kind == steps))
                rest = min(rest, FIRST * cost / max(1e-3, novelty * min(4.0, max(0.5, row.surprise))))
            disputed = any(steps in kinds for _, *kinds in disputes)
            age = self._rounds.get(row.anchor, 0) - self._seen.get(place, 0)
            # The cheapest first: else no credit is left for those near live (worst emulated turn 0.946, not 0.962).
            due = FIRST / cost if disputed else age / rest
            if steps > live > 0:
                unseen = now - max((at for other, at in self._drafted.items() if other >= steps), default=0)
                due = max(due, unseen / next_deeper)
                next_deeper = max(FIRST, 0.5 * REST * cost)
            self._saving = self._saving or due >= 1.0
            if due >= most and (first or disputed or now >= self._next_look) and _affordable(cost, credit):
                most, chosen = due, steps
        if chosen is None:
            return 0
        self._next_look = now + PAUSE
        self._followed |= {pair: longer for pair, longer in disputes.items() if chosen in pair[1:]}
        return self._start(chosen, LOOK_ROUNDS, 2 * LOOK_ROUNDS, row)

    def leave_zero(self, row: RoundTimeRow, now: int) -> None:
        """Start a one-round probe out of zero steps if the draft was not seen for long."""
        unseen = now - self._seen_at
        if unseen < 2 * PROBE_ROUNDS or self._saving or self._left or not self.budget:
            return
        fewest = next((steps for _, steps, _ in row.rungs if steps), None)
        if fewest is None or 0 not in row.allowed or row.anchor not in self._credits:
            return
        zero = row.seconds[0]
        # The most steps that may take as long: they see more, and a wider block is drafted as fast.
        most = (1.0 + PROFILED) * row.seconds[fewest]
        steps = max(steps for _, steps, _ in row.rungs if steps and row.seconds[steps] <= most)
        lost = row.seconds[steps] / zero - self._acceptance.tokens[steps]
        wait = UNSEEN_ROUNDS if self._hears else min(UNSEEN_ROUNDS, lost / self.budget)
        if unseen >= wait and row.seconds[steps] - zero <= self._credits[row.anchor]:
            self._seen_at, self._hears = now, False
            self._start(steps, 1, 1, row)

    def _disputes(self, row: RoundTimeRow) -> dict[tuple[int, int, int], float]:
        """Return, by anchor and both steps, what of ``CostModel.lone`` contradicts *row* and no look has followed."""
        return {
            (row.anchor, low, high): longer
            for low, high, longer in self._cost.lone(row.anchor)
            if {low, high} <= row.seconds.keys()
            and abs(longer - math.log(row.seconds[high] / row.seconds[low])) > CHANGED
            and self._followed.get((row.anchor, low, high)) != longer
        }  # fmt: skip

    def _shortfall(self, steps: int, live: int, row: RoundTimeRow) -> tuple[float, float]:
        """Return the share by which text is served slower at *steps* than at *live*, and the *live* rounds it costs."""
        tokens, longer = self._acceptance.tokens, row.seconds[steps] / row.seconds[live]
        gap = max(0.0, 1.0 - tokens[steps] / tokens[live] / longer)
        return gap, gap * longer

    def _start(self, steps: int, readings: int, most: int, row: RoundTimeRow) -> int:
        self._looks.add((row.anchor, steps))
        self._steps, self._anchor, self._wanted = steps, row.anchor, readings
        self._left, self._unseen, self._others = most, 0, False
        self.started += 1
        return most


def _affordable(cost: float, credit: float) -> bool:
    """Whether *credit* covers *cost*, both in rounds; an almost full credit covers any, because it grows no further."""
    return min(cost, 0.9 * ALLOWANCE_ROUNDS) <= credit
