"""The throughput policy: choose the depth with the highest expected speed, with equal weight for each request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from sglang_adaptive.policy.base import AdaptivePolicy, Outlook, ProbeTotals, RoundPrices, register
from sglang_adaptive.policy.choice import CapturedSteps, Choice, Coming, Source, drafted
from sglang_adaptive.policy.errors import ConfigError, shown
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.options import PolicyOptions, automatic, depths, integer, number, pathname
from sglang_adaptive.policy.profile import CostProfile, ProfileKey, ordered
from sglang_adaptive.policy.throughput import lookups
from sglang_adaptive.policy.throughput.acceptance import RECENT, AcceptanceEstimator, ShadowTrust
from sglang_adaptive.policy.throughput.choice import fastest, rates, why
from sglang_adaptive.policy.throughput.cost import MEASURED, CostModel
from sglang_adaptive.policy.throughput.probing import Prober
from sglang_adaptive.policy.throughput.readings import KEPT, SIDE, Readings
from sglang_adaptive.policy.throughput.rows import RoundTimeRow, RoundTimeTable

SYNC_AFTER, SYNC_LAG = 2 * SIDE, 2
"""Rounds after the start or a switch until measured times are shared, and after a probe until its last result has come.
Others are ``sync_rounds`` apart."""
WELL_SEEN = 2.0 * RECENT
"""Trials of the first position below which zero steps want more shadow drafts; its acceptance is then known to 0.1."""


@dataclass(frozen=True, slots=True)
class ThroughputOptions(PolicyOptions):
    """Options under ``"throughput"``; the defaults need no tuning."""

    candidate_steps: Annotated[tuple[int, ...], depths("depths that the policy may choose")] = (0, 1, 2, 3, 5, 7)
    memory_rounds: Annotated[int, integer("rounds until the weight of an accept count falls to 1/e", 8, 100_000)] = 3840
    shrinkage: Annotated[float, number("weight, in trials, of the previous position in an estimate", 0, 1e4)] = RECENT
    probe_budget: Annotated[float, number("largest share of time that probes may cost; 0 turns them off", 0, 0.2)] = (
        0.005
    )
    sync_rounds: Annotated[int, integer("rounds between two syncs of measured times", 1, 100_000)] = KEPT
    lookup: Annotated[
        bool | str,
        automatic("verify drafts looked up in each request's own text when that pays off, for at most 32 requests"),
    ] = "auto"
    lookup_memory_mb: Annotated[
        int,
        integer("MB for finished texts that are searched too, set at the start; 0 turns that off at any time", 0, 4096),
    ] = 0
    lookup_texts: Annotated[
        str | None, pathname("texts to search from the start: a JSON string or token list a line", "a file", "none")
    ] = None
    profile_dir: Annotated[
        str | None, pathname("where round times are kept between server starts", "a folder's path", "the user's cache")
    ] = None

    summary: ClassVar[str] = (
        "before every round, picks the depth with the highest expected speed for the batch's text, from the "
        "acceptance and the round times that it measures while serving."
    )

    def require_consistent(self, source: str) -> None:
        """Raise ConfigError for options that never draft, never leave zero steps, or have no room for texts."""
        ladder, place = self.candidate_steps, f"{self.policy}.candidate_steps"
        if ladder == (0,):
            raise ConfigError(source, place, f"got {shown(list(ladder))}", "at least one depth above 0 to choose")
        if self.probe_budget == 0 and 0 in ladder:
            # Some setups have no shadow drafts; there only a probe leaves zero steps.
            expected = f"above 0, or {place} without 0: only a probe can leave zero steps"
            raise ConfigError(source, f"{self.policy}.probe_budget", f"got {shown(self.probe_budget)}", expected)
        if self.lookup_texts is not None and self.lookup_memory_mb == 0:
            expected = "above 0 beside lookup_texts, whose texts are kept there"
            raise ConfigError(source, f"{self.policy}.lookup_memory_mb", "got 0", expected)

    @property
    def lookup_kinds(self) -> Mapping[int, range]:
        # A number of drafts names one kind of round only.
        kinds = lookups.KINDS if self.lookup else {}
        return {drafts: sizes for drafts, sizes in kinds.items() if drafts not in self.candidate_steps}


@register(ThroughputOptions)
class ThroughputPolicy(AdaptivePolicy):
    """Chooses by measured acceptance and cost; ``base`` documents the members."""

    name = "throughput"
    keeps_profile = keeps_to_graphs = True
    options: ThroughputOptions

    def __init__(
        self, initial_steps: int, options: ThroughputOptions | None = None, profile: CostProfile | None = None
    ) -> None:
        self.options = options = options or ThroughputOptions()
        self.profile = profile
        self.candidate_steps = list(options.candidate_steps)
        self._ladder = options.candidate_steps
        self._acceptance = AcceptanceEstimator(self._ladder, options.memory_rounds, options.shrinkage)
        self._cost = CostModel(self._ladder, profile)
        self._times = RoundTimeTable(self._cost)
        self._lookups = lookups.Lookups(options)
        self._lookups_allowed = False
        self._readings = Readings()
        self._trust = ShadowTrust()
        self._prober = Prober(options.probe_budget, self._acceptance, self._cost)
        start = min(self._ladder, key=lambda steps: (abs(steps - initial_steps), steps))
        self._live = start
        """The chosen steps; a probe does not change them."""
        self._ran = drafted(start)
        """What the latest round does."""
        self._votes, self._leads = False, True
        """Whether several ranks agree on the steps (see ``follow``), and whether this rank's probes run."""
        self._batch_size, self._round = 1, 0
        self._next_sync = SYNC_AFTER

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        self._times.set_graph_sizes(cuda_graph_bs or [])
        self._set_lookup_kinds()

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        sizes = self._times.graph_sizes
        return [size for size in sizes if step in self._times.allowed(size)] if sizes else None

    # -- a round ----------------------------------------------------------------------------------------------

    def choose(self, coming: Coming) -> Choice:
        self._batch_size = coming.batch_size
        self._ran = self._next(coming, self._times.at(coming.batch_size))
        return self._ran

    def _next(self, coming: Coming, row: RoundTimeRow) -> Choice:
        probed, former = self._prober.take_round(row), self._live
        if probed is not None:
            return drafted(probed, probe=probed != former, why="probe")
        live = self._live = fastest(former, row, self._acceptance.slower(former))
        if live != former:
            self._next_sync = min(self._next_sync, self._round + SYNC_AFTER)
        drafts = self._lookups.chosen(coming, row, live, self._ran, self._acceptance) if row.lookups else 0
        if drafts:
            return Choice(drafts, Source.LOOKUP, why="lookup")
        return drafted(live, why="probe" if self._ran.probe and live == former else "")

    def observe(self, observation: RoundObservation) -> None:
        """Learn from one round; the next ``choose`` makes the decision."""
        steps = observation.steps
        self._round += 1
        row = self._times.at(observation.batch_size)
        if self._lookups_allowed:
            self._lookups.learn(observation, row, self._live, self._acceptance)
        self._learn_acceptance(observation)
        if self._prober.saw(steps, row, self._round, observation.seconds is not None, observation.extended):
            # At once: the next probe, which may follow soon, puts syncs off.
            self._next_sync = min(self._next_sync, self._round + SYNC_LAG)
        if steps in row.log_base:
            # The accounts cover this policy's decisions, not an operator's.
            if observation.chosen and observation.looked_up:
                self._lookups.book(observation, row, self._live, self._acceptance)
            elif observation.chosen:
                self._prober.account(steps, self._live, row)
            seconds = self._lookups.tracking.without(observation)
            if seconds is None:
                self._readings.skip(steps, observation.extended)
            else:
                self._readings.add(row.anchor, steps, row.log_base[steps], seconds, observation.extended)
        if self._round >= self._next_sync:
            self.cost_sync_due = True
        if not self._leads or not observation.chosen:
            return
        if rounds := self._prober.consider(row, self._live, self._round):
            self._next_sync = self._round + rounds + SYNC_LAG
        elif self._live == 0:
            self._prober.leave_zero(row, self._round)

    def _learn_acceptance(self, observation: RoundObservation) -> None:
        """Learn from drafts; at zero steps from shadow accepts, while verified drafts confirm them."""
        steps, trust = observation.steps, self._trust
        counts = observation.num_correct_drafts_per_req if steps else observation.shadow_accepts
        if not counts or observation.looked_up:
            return
        if trust.add(counts, verified=bool(steps)):
            self._acceptance.set_level(trust.verified_rate)
        if steps or trust.believed:
            self._acceptance.update(steps, counts, observation.requests)
            self._prober.draft_seen(self._round, at_zero=not steps)

    # -- what a policy may offer (see ``base``) ---------------------------------------------------------------

    @property
    def tracks_texts(self) -> bool:
        return self._lookups_allowed and not self._lookups.rests

    @property
    def searches_memory(self) -> bool:
        return self._lookups.searches_memory

    def expect_copies(self) -> None:
        self._lookups.expect_copies()

    def allow_lookups(self, allowed: bool, behind: int = 0) -> None:
        self._lookups_allowed = allowed and bool(self.options.lookup)
        self._lookups.behind = behind
        self._set_lookup_kinds()

    def _set_lookup_kinds(self) -> None:
        graphs = self._times.graph_sizes
        kinds = self.options.lookup_kinds if self._lookups_allowed else {}
        self.lookup_kinds = {
            drafts: sizes for drafts, sizes in kinds.items() if not graphs or any(size in sizes for size in graphs)
        }
        self.lookup_requests = max((sizes[-1] for sizes in self.lookup_kinds.values()), default=0)
        self._times.allow_lookups(self.lookup_kinds)

    @property
    def wants_shadow_drafts(self) -> bool:
        return self._acceptance.trials(1) < WELL_SEEN

    def doubt_acceptance(self) -> bool:
        self._acceptance.doubt()
        return True

    def export_cost(self) -> dict[str, Any]:
        return {**self._readings.export(), "tracking": self._lookups.tracking.export()}

    def import_cost(self, payload: Mapping[str, Any]) -> None:
        self.cost_sync_due = False
        self._next_sync = self._round + self.options.sync_rounds
        self._lookups.tracking.seconds = payload["tracking"]
        if self._cost.load(payload["noise"], payload["places"]):
            self._times.forget()
            self._times.at(self._batch_size)  # built here, so that the next round does not wait for it
        self._prober.settle(self._times)

    def export_profile(self, key: ProfileKey, measured: str) -> CostProfile:
        cells = (cell for cell in self._cost.cells() if 2 * (cell.rounds or 0) > SIDE)  # not from a single probe
        return CostProfile(key, ordered(cells), measured)

    def known_profile(self, key: ProfileKey, measured: str) -> CostProfile:
        learnt = self.export_profile(key, measured)
        return learnt if self.profile is None else learnt.merged(self.profile)

    def take_over(self, former: AdaptivePolicy, built: CapturedSteps) -> None:
        """Choose only steps with graphs in *built*, and continue with the acceptance and accounts of *former*.

        Its times arrive as this policy's ``profile``; see ``known_profile``.
        """
        self._times.set_captured({size: built.at(size) for size in built.graph_sizes})
        if isinstance(former, ThroughputPolicy):
            self._acceptance.adopt(former._acceptance)
            self._trust = former._trust
            self._prober.inherit_from(former._prober)
            self._lookups = former._lookups
            self._lookups.options = self.options

    def outlook(self, batch_size: int, live: int) -> Outlook:
        row = self._times.at(batch_size)
        live = min(live, self._ladder[-1])  # an earlier configuration had more steps
        slower = dict(zip(self._ladder, self._acceptance.slower(live), strict=True))
        return Outlook(slower, {steps: seconds for _, steps, seconds in row.rungs}, self._prober.wanted(row))

    def follow(self, batch_size: int, choice: Choice, steps: int, leads: bool) -> None:
        self._batch_size, self._ran = batch_size, choice
        self._live = min(steps, self._ladder[-1])
        self._votes, self._leads = True, leads
        row = self._times.at(batch_size)
        if leads and self._prober.wanted(row) in (None, choice.steps):
            self._prober.take_round(row)
        elif not leads:
            self._prober.yield_round(choice.steps if choice.probe else None)

    def acceptance_by_position(self) -> Sequence[float]:
        return tuple(self._acceptance.conditional)

    def prices(self, batch_size: int, steps: int) -> RoundPrices:
        row, acceptance = self._times.at(batch_size), self._acceptance
        deviations = {deeper: acceptance.ratio_deviation(steps, deeper) for deeper in self._ladder if deeper > steps}
        return RoundPrices(row.seconds, row.deviation, acceptance.tokens, deviations, row.lookups)

    def probe_totals(self) -> ProbeTotals:
        return ProbeTotals(self._prober.started, self._prober.lost_seconds)

    def snapshot(self) -> dict[str, Any]:
        batch_size = max(1, self._batch_size)  # of the latest round
        row = self._times.at(batch_size)
        ran, live = self._ran, self._live
        running = live if ran.source is Source.LOOKUP else ran.steps
        promised = rates(batch_size, running, row, self._acceptance, self._cost)
        return {
            "rounds": self._round,
            "batch_size": batch_size,
            "steps": ran.steps,
            "why": why(ran, live, self._round, self._votes, promised),
            "acceptance": self._acceptance.by_position(),
            "rates": promised,
            "cost_cells": [{**cell.as_dict(), "source": MEASURED} for cell in self._cost.cells()],
            "cost_table": self._cost.as_dict(row.padded),
            "probes": self._prober.as_dict(),
            "lookup_rounds": self._lookups.as_dict(row, self.lookup_kinds) if self._lookups_allowed else None,
        }
