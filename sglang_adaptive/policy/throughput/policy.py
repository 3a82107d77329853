"""The throughput policy: run the depth with the highest expected tokens per second.

    rate(s) = batch * E[tokens | s] / T(batch, s)

E comes from ``acceptance``, T from ``cost``. Another depth must promise ``margin`` more than the live one, and more
still while acceptance is uncertain. ``prober`` buys knowledge within a budget, and ``guard`` bounds what speculation
may lose against zero steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sglang_adaptive.policy.config.captured_steps import CapturedSteps
from sglang_adaptive.policy.config.config import AdaptiveConfig
from sglang_adaptive.policy.config.throughput_options import ThroughputOptions
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.profile.profile import CostProfile, ProfileKey
from sglang_adaptive.policy.telemetry import Forecast, ProbeTotals, RoundPrices
from sglang_adaptive.policy.throughput.acceptance.estimator import AcceptanceEstimator
from sglang_adaptive.policy.throughput.acceptance.ratio_deviation import ratio_deviation
from sglang_adaptive.policy.throughput.acceptance.regions import BatchRegions
from sglang_adaptive.policy.throughput.acceptance.shadow_trust import ShadowTrust
from sglang_adaptive.policy.throughput.choice.conviction import Conviction
from sglang_adaptive.policy.throughput.choice.guard import ZeroGuard
from sglang_adaptive.policy.throughput.choice.prober import Prober
from sglang_adaptive.policy.throughput.choice.standing_batch import StandingBatch
from sglang_adaptive.policy.throughput.cost.cost import CostModel
from sglang_adaptive.policy.throughput.cost.readings import Readings
from sglang_adaptive.policy.throughput.cost.views import View, Views
from sglang_adaptive.policy.throughput.report import learnt_profile, report

FIRST_SYNCS = (4, 8, 16)
"""Rounds of the first hand-overs of measured times; later ones are ``sync_rounds`` apart, or follow a probe."""
SYNC_LAG = 2
"""Rounds from the end of a probe until its last result has arrived."""
ZERO_MARGIN = 0.01
"""Gain over zero steps that speculation must promise to go on; twice that to start."""
ZERO_TRIALS = 50.0
"""Evidence kept on entering zero steps: the little that probes find there must count."""
WELL_HEARD = 32.0
"""Trials of the first position until which zero steps want to hear more of the draft."""
ZERO_ROUNDS = 10
import os
SIGMAS, HOLD = float(os.environ.get('SIG','1')), float(os.environ.get('HOLD','.1'))
"""Rounds that zero steps are kept once entered, so that they get timed."""
CONFIRM_ROUNDS, CONFIRMED = 12, 0.08
"""Rounds after which a change of acceptance counts for probes, if the first position's has moved so far by then: chance
raises an alarm every few minutes, and it is over as soon."""
REGION_TRIALS = 24.0
"""Evidence kept when acceptance is moved to what a batch region, or the drafts that were verified, are known for."""
NEW_WEIGHTS_TRIALS = 24.0
"""Evidence kept after an update of weights. Where acceptance falls from 0.7 to 0.6, expected tokens at batch 8 are 5%
off after 16 rounds and not 14%; where it stays, 3% and not 1% (3 steps, simulated, mean of 60 draws)."""


class ThroughputPolicy:
    """Chooses by measured acceptance and measured cost; see ``AdaptivePolicy``, ``LearnsCost`` and ``monitored``."""

    name = "throughput"

    def __init__(
        self,
        initial_steps: int,
        options: ThroughputOptions | None = None,
        profile: CostProfile | None = None,
        config: AdaptiveConfig | None = None,
    ) -> None:
        """*config* is where *options* come from, for monitoring alone."""
        self.options = options = options or ThroughputOptions()
        self.profile = profile
        self.config = config
        self.cost_sync_due = False
        self._ladder = options.candidate_steps
        self._acceptance = AcceptanceEstimator(
            self._ladder, options.memory_rounds, options.shrinkage, options.change_threshold
        )
        self._cost = CostModel(self._ladder, profile)
        self._views = Views(self._cost)
        self._readings = Readings()
        self._regions = BatchRegions()
        self._guard = ZeroGuard()
        self._trust = ShadowTrust()
        self._prober = Prober(options.probe_budget)
        self._live = min(self._ladder, key=lambda steps: (abs(steps - initial_steps), steps))
        """The depth that decisions keep or leave; a probe does not change it."""
        self._running = self._live
        self._batch_size = 1
        self._standing = StandingBatch()
        self._round = 0
        self._changes = self._changed_at = 0
        """Changes of acceptance so far, and the round of the latest."""
        self._alarm: tuple[float, int] | None = None
        """Acceptance before the latest change, and the round at which it is confirmed or not."""
        self._promised = 0.0
        self._undecided = False
        """Whether zero steps stay for want of certainty alone."""
        self._zero_since = -ZERO_ROUNDS
        self._next_sync = FIRST_SYNCS[0]

    # -- SGLang's protocol ------------------------------------------------------------------------------------

    @property
    def candidate_steps(self) -> list[int]:
        """Every depth that may run, ascending."""
        return list(self._ladder)

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Take the batch sizes that have CUDA graphs; a batch pays for the next one of them."""
        self._views.set_graph_sizes(cuda_graph_bs or [])

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """Return the graph batch sizes at which *step* may run; None when graphs are off."""
        sizes = self._views.graph_sizes
        return [size for size in sizes if step in self._views.allowed(size)] if sizes else None

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Return the depth of the round about to start; to be called once a round."""
        view = self._views.at(batch_size)
        self._batch_size = batch_size
        probing = self._prober.take_round(view, self._live)
        if probing is not None:
            self._running = probing
            return probing
        self._standing.follow(view.anchor)
        steps = self._choose(view)
        if steps != self._live:
            self._enter(steps)
        self._running = steps
        return steps

    def on_verify_complete(self, num_correct_drafts_per_req: Sequence[int], batch_size: int) -> int | None:
        """Learn from a round of the depth that was last returned; see ``observe``."""
        return self.observe(RoundObservation(self._running, num_correct_drafts_per_req, batch_size))

    # -- what this package adds -------------------------------------------------------------------------------

    def observe(self, observation: RoundObservation) -> int | None:
        """Learn from one round. Always None: the next ``get_steps_for_batch`` decides, for its own batch."""
        steps, batch_size = observation.steps, observation.batch_size
        self._round = now = self._round + 1
        self._prober.follow(batch_size)
        view = self._views.at(batch_size)
        counts = observation.num_correct_drafts_per_req
        accepted = self._learn_verified(steps, counts, batch_size, observation.requests) if steps else 0
        if not steps and observation.shadow_accepts:
            self._hear(observation.shadow_accepts, batch_size, now)
        seconds = view.seconds.get(steps)
        if seconds is not None:
            if observation.chosen:  # the accounts answer for this policy's decisions, not for an operator's
                self._prober.account.earn(seconds)
                if steps:
                    self._book(view, steps, seconds, accepted, len(counts))
                else:
                    self._guard.book(0.0)
            if observation.seconds is None:
                self._readings.skip(steps, observation.extended)
            else:
                taken, extended = observation.seconds, observation.extended
                self._readings.add(view.anchor, steps, view.log_base[steps], taken, now, extended)
        if now >= self._next_sync:
            self.cost_sync_due = True
        if self._prober.due(now):
            self._consider_probe(view, batch_size, now)
        return None

    @property
    def wants_shadow_drafts(self) -> bool:
        """Whether more of what zero steps foretell is worth its price.

        It is where little is known of the draft, where it seems to improve, and where it promises enough to speculate
        if that were sure.
        """
        return self._undecided or self._acceptance.trials(1) < WELL_HEARD or self._acceptance.promising

    def export_cost(self) -> dict[str, Any]:
        """Return this rank's readings as builtins, for ``import_cost`` on every rank."""
        return self._readings.export()

    def import_cost(self, payload: Mapping[str, Any]) -> None:
        """Decide on these readings from now on."""
        self.cost_sync_due = False
        early = [due for due in FIRST_SYNCS if due > self._round]
        self._next_sync = early[0] if early else self._round + self.options.sync_rounds
        if self._cost.load(payload["drift"], payload["cells"]):
            self._views.forget()
            self._views.at(self._batch_size)  # built here, so that the next round does not wait for it
        self._prober.settle(self._views)
        self._prober.timed_share = payload["share"]
        if self._prober.waiting:
            self._next_sync = min(self._next_sync, self._round + self._prober.length + SYNC_LAG)

    def inherit_from(self, former: ThroughputPolicy) -> None:
        """Go on where *former* stops: with the acceptance that it has learnt, and its accounts.

        Its times come as this policy's ``profile``; see ``ThroughputPolicy.known_profile``.
        """
        self._acceptance.adopt(former._acceptance)
        self._changes = self._acceptance.changes
        self._regions = former._regions
        self._guard = former._guard
        self._trust = former._trust
        self._prober.inherit_from(former._prober)

    def doubt_acceptance(self) -> None:
        """Keep little evidence for what acceptance was, as after new weights; measured times stay."""
        self._acceptance.cap(NEW_WEIGHTS_TRIALS)
        self._regions = BatchRegions()

    def known_profile(self, key: ProfileKey, measured: str) -> CostProfile:
        """Return the times that this server measured, and where it has none those that it was started with."""
        learnt = self.export_profile(key, measured)
        return learnt if self.profile is None else learnt.merged(self.profile)

    def keep_to_graphs(self, built: CapturedSteps) -> None:
        """Choose only depths that have graphs at a batch size, where graphs were captured for another policy."""
        self._views.set_captured({size: built.at(size) for size in built.graph_sizes})

    def export_profile(self, key: ProfileKey, measured: str) -> CostProfile:
        """Return the times that this server measured; what it was started with is not repeated."""
        return learnt_profile(self, key, measured)

    def snapshot(self) -> dict[str, Any]:
        """Return acceptance, rates, cost cells, probes and why the depth is what it is, as JSON builtins."""
        return report(self)

    # -- what monitoring asks ---------------------------------------------------------------------------------

    def forecast(self, batch_size: int, steps: int) -> Forecast | None:
        """Return the rate of *steps* at *batch_size*, and that over zero steps; None for an unknown depth."""
        view = self._views.at(batch_size)
        seconds = view.seconds.get(steps)
        if seconds is None:
            return None
        tokens = self._acceptance.tokens[steps]
        speedup = None if view.zero is None else tokens * view.zero / seconds
        return Forecast(batch_size * tokens / seconds, speedup)

    def acceptance_by_position(self) -> Sequence[float]:
        """Return each position's conditional acceptance, as believed now."""
        return tuple(self._acceptance.conditional)

    def prices(self, batch_size: int, steps: int) -> RoundPrices:
        """Return what every depth promises at *batch_size*, seen from rounds drafted with *steps*."""
        view, acceptance = self._views.at(batch_size), self._acceptance
        doubts = {deeper: ratio_deviation(acceptance, steps, deeper) for deeper in self._ladder if deeper > steps}
        return RoundPrices(view.seconds, view.deviation, acceptance.tokens, doubts)

    @property
    def probing(self) -> bool:
        """Whether the depth that was returned last is a probe's."""
        return self._running != self._live

    def probe_totals(self) -> ProbeTotals:
        """Return what probes have cost so far."""
        return self._prober.totals

    # -- inside -----------------------------------------------------------------------------------------------

    def _learn_verified(self, steps: int, counts: Sequence[int], batch_size: int, requests: Sequence[Any]) -> int:
        accepted = self._learn_acceptance(steps, counts, batch_size, requests=requests)
        if self._trust.verify(counts):
            self._unlearn_heard()
        return accepted

    def _hear(self, shadow: Sequence[int], batch_size: int, now: int) -> None:
        """Learn the first position from what a zero-step round heard, while verified drafts bear it out."""
        if self._trust.hear(shadow):
            self._unlearn_heard()
        if self._trust.believed:
            self._learn_acceptance(1, shadow, batch_size, shadow=True)
            self._prober.heard(now)

    def _unlearn_heard(self) -> None:
        """Put acceptance where the latest verified drafts have it."""
        self._acceptance.believe_first(self._trust.verified_rate, REGION_TRIALS)
        self._prober.refresh(self._round)

    def _learn_acceptance(self, steps: int, counts: Sequence[int], batch_size: int, shadow: bool = False, requests: Sequence[Any] = ()) -> int:
        acceptance = self._acceptance
        before = acceptance.conditional[0]
        accepted = acceptance.update(steps, counts, shadow, requests)
        if acceptance.changes != self._changes:
            self._changes, self._changed_at = acceptance.changes, self._round
            self._trust.changed(shadow)
            self._alarm = self._alarm or (before, self._round + CONFIRM_ROUNDS)
        elif self._alarm is not None and self._round >= self._alarm[1]:
            moved = abs(acceptance.conditional[0] - self._alarm[0])
            self._alarm = None
            if moved > CONFIRMED:
                self._prober.refresh(self._round)
        return accepted

    def _book(self, view: View, steps: int, seconds: float, accepted: int, requests: int) -> None:
        """Enter a drafted round into the account against zero steps; the prober answers for its own rounds."""
        if self._prober.claims(steps, self._live):
            self._prober.encouraged(accepted > 0 and self._acceptance.rising)
        elif view.zero_at_most is not None and requests:
            self._guard.book(seconds / view.zero_at_most - 1.0 - accepted / requests)
            self._acceptance.wary = self._guard.wary

    def _choose(self, view: View) -> int:
        self._undecided = False
        live = self._live
        slower = self._acceptance.slower(live)
        index = self._ladder.index
        costs = {steps: seconds * slower[index(steps)] for steps, seconds in view.pairs}
        best = min(costs, key=costs.__getitem__)
        if live in costs and best != live:
            gain = costs[live] / costs[best] - 1.0
            over = gain - self.options.margin
            if over > 0.0:
                over -= SIGMAS * self._acceptance.ratio_deviation(live, best)
            self._promised = max(0.0, self._promised + over) if over > 0.0 else 0.5 * self._promised
            if self._promised < HOLD:
                best = live
        else:
            self._promised = 0.0
        tokens = self._acceptance.tokens
        best_rate = tokens[best] / view.seconds[best]
        if best and view.zero is not None and not self._beats_zero(best_rate * view.zero - 1.0, best):
            return 0
        return best

    def _beats_zero(self, gain: float, steps: int) -> bool:
        """Whether a gain over zero steps is enough to speculate; leaving zero takes twice the margin."""
        if self._live == 0 and self._round - self._zero_since < ZERO_ROUNDS:
            return False
        if gain < (ZERO_MARGIN if self._live else 2.0 * ZERO_MARGIN):
            return False
        self._undecided = gain < self._guard.doubts * ratio_deviation(self._acceptance, 0, steps)
        return not self._undecided

    def _enter(self, steps: int) -> None:
        if steps == 0:
            self._acceptance.cap(ZERO_TRIALS)
            self._zero_since = self._round
        elif self._live == 0:
            self._prober.left_zero()
        self._live = steps
        self._promised = 0.0

    def _consider_probe(self, view: View, batch_size: int, now: int) -> None:
        if self._live == 0:
            self._prober.consider_leaving_zero(view, batch_size, self._guard, now)
        elif self._prober.consider(view, batch_size, self._live, self._acceptance, now):
            self._next_sync = now + self._prober.length + SYNC_LAG
