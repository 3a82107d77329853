"""The throughput policy: run the steps that the batch's text is done soonest with.

    time(s) / time(live) = T(batch, s) / T(batch, live) * rounds(s) / rounds(live)

The ratio of rounds comes from ``acceptance``, T from ``cost``. ``choice`` says how much other steps must promise,
bounds what speculation may lose against zero steps, and buys knowledge within a budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_adaptive.policy.config.captured_steps import CapturedSteps
from sglang_adaptive.policy.config.config import AdaptiveConfig
from sglang_adaptive.policy.config.throughput_options import ThroughputOptions
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.profile.profile import CostProfile, ProfileKey
from sglang_adaptive.policy.telemetry import Forecast, ProbeTotals, RoundPrices
from sglang_adaptive.policy.throughput.acceptance.estimator import AcceptanceEstimator
from sglang_adaptive.policy.throughput.acceptance.shadow_trust import ShadowTrust
from sglang_adaptive.policy.throughput.budgets.folding import Budgets
from sglang_adaptive.policy.throughput.choice.probing import PROBE_ROUNDS, Prober
from sglang_adaptive.policy.throughput.choice.step_choice import StepChoice
from sglang_adaptive.policy.throughput.cost.model import CostModel
from sglang_adaptive.policy.throughput.cost.readings import Readings
from sglang_adaptive.policy.throughput.cost.round_times import RoundTimeRow, RoundTimes
from sglang_adaptive.policy.throughput.report import learnt_profile, report

FIRST_SYNC = 16
"""Round of the first hand-over of measured times; later ones are ``sync_rounds`` apart, or follow a probe."""
SYNC_LAG = 2
"""Rounds from the end of a probe until its last result has arrived."""
WELL_SEEN = 32.0
"""Trials of the first position until which zero steps want more shadow drafts: its acceptance is then known to 0.09."""
NEW_WEIGHTS_TRIALS = 24.0
"""Evidence kept after an update of weights, a bin: it is outvoted within a second of serving."""


class ThroughputPolicy:
    """Chooses by measured acceptance and measured cost; see ``AdaptivePolicy``, ``LearnsCost`` and ``telemetry``."""

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
        self._acceptance = AcceptanceEstimator(self._ladder, options.memory_rounds, options.shrinkage)
        self._cost = CostModel(self._ladder, profile)
        self._times = RoundTimes(self._cost)
        self._budgets = Budgets()
        self._readings = Readings()
        self._trust = ShadowTrust()
        self._prober = Prober(options.probe_budget)
        start = min(self._ladder, key=lambda steps: (abs(steps - initial_steps), steps))
        self._choice = StepChoice(start, options.margin)
        self._running = start
        """The steps that were returned last: those of the choice, or a probe's."""
        self.budget: int | None = None
        """Mean drafts to verify of a request in the round that was asked for last; None for all."""
        self._votes = False
        """Whether several ranks agree on the steps; see ``outlook``."""
        self._leads = True
        """Whether this rank's probes are run."""
        self._batch_size, self._round = 1, 0
        self._next_sync = FIRST_SYNC

    # -- SGLang's protocol ------------------------------------------------------------------------------------

    @property
    def candidate_steps(self) -> list[int]:
        """Every number of steps that may run, ascending."""
        return list(self._ladder)

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Take the batch sizes that have CUDA graphs; a batch pays for the next one of them."""
        self._times.set_graph_sizes(cuda_graph_bs or [])

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """Return the graph batch sizes at which *step* may run; None when graphs are off."""
        sizes = self._times.graph_sizes
        return [size for size in sizes if step in self._times.allowed(size)] if sizes else None

    def allow_budgets(self, allowed: bool) -> None:
        """Choose budgets from now on, if the options ask for them, or none."""
        self._times.allow_budgets(allowed and self.options.verify_budget)

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Return the steps of the round about to start; to be called once a round."""
        row = self._row(batch_size)
        self._batch_size = batch_size
        probing = self._prober.take_round(row)
        if probing is None:
            self._choice.decide(row, self._acceptance)
        self._running = self._choice.live if probing is None else probing
        self.budget = row.budgets.get(self._running)
        return self._running

    def on_verify_complete(self, num_correct_drafts_per_req: Sequence[int], batch_size: int) -> int | None:
        """Learn from a round of the steps that were last returned; see ``observe``."""
        return self.observe(RoundObservation(self._running, num_correct_drafts_per_req, batch_size))

    # -- what this package adds -------------------------------------------------------------------------------

    def observe(self, observation: RoundObservation) -> int | None:
        """Learn from one round. Always None: the next ``get_steps_for_batch`` decides, for its own batch."""
        steps, place = observation.steps, observation.place
        self._round += 1
        row = self._row(observation.batch_size)
        if steps:
            self._learn_verified(observation)
        elif observation.shadow_accepts:
            self._learn_shadow(observation)
        if place in row.took:
            if observation.chosen:  # the accounts answer for this policy's decisions, not for an operator's
                self._book(row, observation, row.took[place])
            if observation.seconds is None:
                self._readings.skip(steps, observation.extended)
            else:
                cell, base = (row.anchor, *place), row.log_base[place]
                self._readings.add(cell, base, observation.seconds, observation.extended)
        if self._round >= self._next_sync:
            self.cost_sync_due = True
        if self._leads:
            self._consider_probe(row)
        return None

    @property
    def wants_shadow_drafts(self) -> bool:
        """Whether more shadow drafts at zero steps are worth their price: where little is known of the draft."""
        return self._acceptance.trials(1) < WELL_SEEN

    def export_cost(self) -> dict[str, Any]:
        """Return this rank's readings as builtins, for ``import_cost`` on every rank."""
        return self._readings.export()

    def import_cost(self, payload: Mapping[str, Any]) -> None:
        """Decide on these readings from now on."""
        self.cost_sync_due = False
        self._next_sync = self._round + self.options.sync_rounds
        if self._cost.load(payload["drift"], payload["cells"]):
            self._times.forget()
            self._times.at(self._batch_size)  # built here, so that the next round does not wait for it

    def inherit_from(self, former: ThroughputPolicy) -> None:
        """Go on where *former* stops: with the acceptance that it has learnt, and its accounts.

        Its times come as this policy's ``profile``; see ``ThroughputPolicy.known_profile``.
        """
        self._acceptance.adopt(former._acceptance)
        self._choice.losses = former._choice.losses
        self._trust = former._trust
        self._prober.inherit_from(former._prober)
        self._budgets.yields = former._budgets.yields

    def doubt_acceptance(self) -> None:
        """Keep little evidence for what acceptance was, as after new weights; measured times stay."""
        self._acceptance.cap(NEW_WEIGHTS_TRIALS)

    def known_profile(self, key: ProfileKey, measured: str) -> CostProfile:
        """Return the times that this server measured, and where it has none those that it was started with."""
        learnt = self.export_profile(key, measured)
        return learnt if self.profile is None else learnt.merged(self.profile)

    def keep_to_graphs(self, built: CapturedSteps) -> None:
        """Choose only steps that have graphs at a batch size, where graphs were captured for another policy."""
        self._times.set_captured({size: built.at(size) for size in built.graph_sizes})

    def export_profile(self, key: ProfileKey, measured: str) -> CostProfile:
        """Return the times that this server measured; what it was started with is not repeated."""
        return learnt_profile(self, key, measured)

    def snapshot(self) -> dict[str, Any]:
        """Return acceptance, rates, cost cells, probes and why the steps are what they are, as JSON builtins."""
        return report(self)

    # -- what monitoring asks ---------------------------------------------------------------------------------

    def forecast(self, batch_size: int, steps: int) -> Forecast | None:
        """Return the rate of *steps* at *batch_size*, and that over zero steps; None for unknown steps."""
        row = self._row(batch_size)
        seconds = row.seconds.get(steps)
        if seconds is None:
            return None
        tokens = self._acceptance.tokens[steps]
        speedup = None if row.zero is None else tokens * row.zero / seconds
        return Forecast(batch_size * tokens / seconds, speedup)

    def acceptance_by_position(self) -> Sequence[float]:
        """Return each position's conditional acceptance, as believed now."""
        return tuple(self._acceptance.conditional)

    def prices(self, batch_size: int, steps: int) -> RoundPrices:
        """Return what all steps promise at *batch_size*, seen from rounds drafted with *steps*."""
        row, acceptance = self._times.at(batch_size), self._acceptance
        deviations = {deeper: acceptance.ratio_deviation(steps, deeper) for deeper in self._ladder if deeper > steps}
        return RoundPrices(row.seconds, row.deviation, acceptance.tokens, deviations, row.took)

    @property
    def probing(self) -> bool:
        """Whether the steps that were returned last are a probe's."""
        return self._running != self._choice.live

    def probe_totals(self) -> ProbeTotals:
        """Return what probes have cost so far."""
        return self._prober.totals

    # -- inside -----------------------------------------------------------------------------------------------

    def _learn_verified(self, observation: RoundObservation) -> None:
        if observation.evidence is not None:
            self._budgets.yields.learn(observation.evidence)
        if counts := observation.of_all_drafts:
            self._acceptance.update(observation.steps, counts, observation.requests)
            self._prober.draft_seen(self._round)
            if self._trust.verify(counts):
                self._acceptance.believe_first(self._trust.verified_rate)

    def _learn_shadow(self, observation: RoundObservation) -> None:
        """Learn the first position from a zero-step round, while verified drafts bear out what it shows."""
        accepts = observation.shadow_accepts
        if self._trust.hear(accepts):
            self._acceptance.believe_first(self._trust.verified_rate)
        if self._trust.believed:
            self._acceptance.update(0, accepts, observation.requests)
            self._prober.draft_seen(self._round)

    def _row(self, batch_size: int) -> RoundTimeRow:
        return self._budgets.fold(self._times.at(batch_size), self._acceptance, self._round)

    def _book(self, row: RoundTimeRow, observation: RoundObservation, took: float) -> None:
        """Enter a round into the accounts; the prober answers for its own rounds."""
        steps, counts = observation.steps, observation.num_correct_drafts_per_req
        if self._prober.follow(steps, self._choice.live, row, self._acceptance) and self._choice.live == 0:
            return
        if row.zero is not None and counts:
            loss = took / row.zero - 1.0 - sum(counts) / len(counts) if steps else 0.0
            self._choice.losses.book(loss)

    def _consider_probe(self, row: RoundTimeRow) -> None:
        if self._choice.live == 0:
            self._prober.leave_zero(row, self._round)
        elif self._prober.consider(row, self._choice.live, self._acceptance, self._round):
            self._next_sync = self._round + PROBE_ROUNDS + SYNC_LAG
