"""The throughput policy as a server would start it on a trace, whole or with one part off."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from sglang_adaptive.lab.simulate.cost import RoundCost
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


def given_profile(launch: Launch, flat: bool = False) -> CostProfile | None:
    """Return the cost profile that a server would start with, None without; *flat* gives every depth the same cost."""
    cost = launch.given
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


# What takes a part off a policy that has been made.


def _tell(**instead: Any) -> Callable[[ThroughputPolicy], None]:
    """Return what puts *instead* into every observation of a policy."""

    def forget(policy: ThroughputPolicy) -> None:
        learn = policy.observe

        def observe(observation: RoundObservation) -> None:
            learn(replace(observation, **instead))

        policy.observe = observe  # type: ignore[method-assign]

    return forget


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


@dataclass(frozen=True)
class Ablation:
    """What is changed of the policy; see ``ABLATIONS``."""

    options: Mapping[str, Any] = field(default_factory=dict)
    flat_cost: bool = False
    """Whether the given profile takes every depth to cost the same."""
    forget: Callable[[ThroughputPolicy], None] | None = None
    """Takes a part off the policy."""


WHOLE = Ablation()
ABLATIONS: Mapping[str, Ablation] = {
    "no-censoring": Ablation(forget=_forget_censoring),
    "no-shrinkage": Ablation({"shrinkage": 0.001}),  # positions are learnt apart from each other
    "no-levels": Ablation(forget=_forget_levels),
    "no-cost": Ablation(flat_cost=True, forget=_tell(seconds=None)),
    "no-clock": Ablation(forget=_tell(seconds=None)),  # the profile is believed
    "no-hearing": Ablation(forget=_tell(shadow_accepts=())),  # at zero steps probes alone tell of the draft
    "no-margin": Ablation({"margin": 0.0}),  # any gain, however small, is worth a switch
    "no-hysteresis": Ablation(forget=_forget_hysteresis),
    "no-probing": Ablation({"probe_budget": 0.0}),
}


LOOKUPS = "lookups"
WITH_LOOKUPS = Ablation({"lookup": True})


def build(launch: Launch, ablation: Ablation = WHOLE, graph_batches: Sequence[int] | None = None) -> ThroughputPolicy:
    """Return a fresh policy, launched in the middle of the ladder with the profile of the trace."""
    options = ThroughputOptions(candidate_steps=launch.ladder, **ablation.options)
    given = given_profile(launch, ablation.flat_cost)
    policy = ThroughputPolicy(launch.ladder[len(launch.ladder) // 2], options, given)
    policy.set_cuda_graph_bs(None if graph_batches is None else list(graph_batches))
    if ablation.forget is not None:
        ablation.forget(policy)
    return policy
