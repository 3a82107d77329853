"""The throughput policy as a server would start it on a trace, whole or with one part off."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from sglang_adaptive.lab.simulate.cost import RoundCost
from sglang_adaptive.lab.simulate.engine import Drivable
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.profile import CostProfile, ProfileCell, ProfileKey, ordered
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.policy.throughput.acceptance import AcceptanceEstimator


class Launch(Protocol):
    """The part of a run that a server knows before its first round."""

    @property
    def ladder(self) -> tuple[int, ...]:
        """Depths that may be chosen, ascending."""

    @property
    def given(self) -> RoundCost | None:
        """The cost profile handed to the policy; None for a start without one."""


KEY = ProfileKey("simulated", "simulated", "simulated", 1, 1, "simulated")


@dataclass(frozen=True)
class Ablation:
    """One part of the policy off; see ``ABLATIONS``."""

    title: str
    options: Mapping[str, Any] = field(default_factory=dict)
    flat_cost: bool = False
    clock: bool = True
    censoring: bool = True
    levels: bool = True
    hysteresis: bool = True
    hearing: bool = True


WHOLE = Ablation("throughput")
ABLATIONS: Mapping[str, Ablation] = {
    "no-censoring": Ablation("positions that were never drafted count as rejected", censoring=False),
    "no-shrinkage": Ablation("positions are learnt apart from each other", {"shrinkage": 0.001}),
    "no-levels": Ablation("every request is expected to do as well as all do lately", levels=False),
    "no-cost": Ablation("every depth is taken to cost the same", flat_cost=True, clock=False),
    "no-clock": Ablation("the profile is believed; no round is timed", clock=False),
    "no-hearing": Ablation("at zero steps probes alone tell of the draft", hearing=False),
    "no-margin": Ablation("any gain, however small, is worth a switch", {"margin": 0.0}),
    "no-hysteresis": Ablation("the best steps are taken at once", hysteresis=False),
    "no-probing": Ablation("no round is spent to learn", {"probe_budget": 0.0}),
}


LOOKUPS = "lookups"
WITH_LOOKUPS = Ablation("throughput, with lookups", {"lookup": True})


def build(trace: Launch, ablation: Ablation = WHOLE, graph_batches: Sequence[int] | None = None) -> Drivable:
    """Return a fresh policy, launched in the middle of the ladder with the profile of the trace."""
    options = ThroughputOptions(candidate_steps=trace.ladder, **ablation.options)
    given = given_profile(trace, ablation.flat_cost)
    policy = ThroughputPolicy(trace.ladder[len(trace.ladder) // 2], options, given)
    policy.set_cuda_graph_bs(None if graph_batches is None else list(graph_batches))
    if not ablation.censoring:
        _forget_censoring(policy)
    if not ablation.hearing:
        _forget_hearing(policy)
    if not ablation.levels:
        _forget_levels(policy)
    if not ablation.hysteresis:
        _forget_hysteresis(policy)
    return policy if ablation.clock else _WithoutClock(policy)


def given_profile(trace: Launch, flat: bool = False) -> CostProfile | None:
    """Return the cost profile that a server would start with, None without; *flat* gives every depth the same cost."""
    cost = trace.given
    if cost is None:
        return None
    if flat:
        mean = cost.seconds.mean(axis=1, keepdims=True)
        cost = RoundCost(cost.batches, cost.steps, np.repeat(mean, len(cost.steps), axis=1))
    return profile_of(cost)


def profile_of(cost: RoundCost) -> CostProfile:
    """Return *cost* as the profile of a server."""
    cells = (ProfileCell(batch, steps, seconds) for (batch, steps), seconds in cost.cells().items())
    return CostProfile(KEY, ordered(cells), "simulated")


class _WithoutClock:
    """Keeps every round time from the policy."""

    def __init__(self, policy: ThroughputPolicy) -> None:
        self._policy = policy
        self.get_steps_for_batch = policy.get_steps_for_batch
        self.on_verify_complete = policy.on_verify_complete

    @property
    def wants_shadow_drafts(self) -> bool:
        """As the policy has it."""
        return self._policy.wants_shadow_drafts

    def observe(self, observation: RoundObservation) -> None:
        """Pass the round on without its time."""
        self._policy.observe(replace(observation, seconds=None))


def _forget_hearing(policy: ThroughputPolicy) -> None:
    """Keep from the policy what the draft foretells at zero steps."""
    learn = policy.observe

    def observe(observation: RoundObservation) -> None:
        learn(replace(observation, shadow_accepts=()))

    policy.observe = observe  # type: ignore[method-assign]


def _forget_censoring(policy: ThroughputPolicy) -> None:
    """Let every round pass for one drafted to the deepest step: what was not drafted counts as rejected."""
    estimator: AcceptanceEstimator = policy._acceptance
    learn = estimator.update

    def update(steps: int, counts: Sequence[int], requests: Sequence[Hashable] = ()) -> None:
        learn(estimator.depth, counts, requests)

    estimator.update = update  # type: ignore[method-assign]


def _forget_levels(policy: ThroughputPolicy) -> None:
    """Let every bin stand for the usual level: what a request did says nothing of what it will do."""
    estimator: AcceptanceEstimator = policy._acceptance
    levels = estimator.levels
    update = levels.update

    def pooled(steps: int, counts: Sequence[int], requests: Sequence[Hashable]) -> bytes:
        update(steps, counts, requests)
        levels.set_all(levels.usual)
        return levels.bins

    levels.update = pooled  # type: ignore[method-assign]


def _forget_hysteresis(policy: ThroughputPolicy) -> None:
    """Take the best steps at once."""
    policy._choice.stays = lambda gain, best, acceptance: False  # type: ignore[method-assign]
