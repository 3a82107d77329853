"""The throughput policy as a server would start it on a trace, complete or with one part disabled."""

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
    """What a server knows about a run before its first round."""

    @property
    def ladder(self) -> tuple[int, ...]:
        """Depths that may be chosen, ascending."""

    @property
    def given(self) -> RoundCost | None:
        """The cost profile given to the policy; None for a start without one."""


KEY = ProfileKey("simulated", "simulated", "simulated", 1, 1, "simulated")


def given_profile(launch: Launch, flat: bool = False) -> CostProfile | None:
    """Return the profile that a server would start with, None without; *flat* gives every depth the same cost."""
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


# Functions that disable a part of a policy.


def _tell(**instead: Any) -> Callable[[ThroughputPolicy], None]:
    """Return a function that puts *instead* into every observation of a policy."""

    def forget(policy: ThroughputPolicy) -> None:
        learn = policy.observe

        def observe(observation: RoundObservation) -> None:
            learn(replace(observation, **instead))

        policy.observe = observe  # type: ignore[method-assign]

    return forget


def _forget_censoring(policy: ThroughputPolicy) -> None:
    """Treat every round as drafted to the deepest step: positions not drafted count as rejected."""
    estimator: AcceptanceEstimator = policy._acceptance
    learn = estimator.update

    def update(steps: int, counts: Sequence[int], requests: Sequence[Hashable] = ()) -> None:
        learn(estimator.depth, counts, requests)

    estimator.update = update  # type: ignore[method-assign]


def _forget_levels(policy: ThroughputPolicy) -> None:
    """Give every bin the usual level: a request's past says nothing about its future."""
    estimator: AcceptanceEstimator = policy._acceptance
    levels = estimator.levels
    update = levels.update

    def pooled(steps: int, counts: Sequence[int], requests: Sequence[Hashable]) -> bytes:
        update(steps, counts, requests)
        levels.set_all(levels.usual)
        return levels.bins

    levels.update = pooled  # type: ignore[method-assign]


def _forget_hysteresis(policy: ThroughputPolicy) -> None:
    """Switch to the best steps at once."""
    policy._choice.stays = lambda gain: False  # type: ignore[method-assign]


@dataclass(frozen=True)
class Ablation:
    """What is changed in the policy; see ``ABLATIONS``."""

    options: Mapping[str, Any] = field(default_factory=dict)
    flat_cost: bool = False
    """Whether the given profile has the same cost at every depth."""
    forget: Callable[[ThroughputPolicy], None] | None = None
    """Disables a part of the policy."""


WHOLE = Ablation()
ABLATIONS: Mapping[str, Ablation] = {
    "no-censoring": Ablation(forget=_forget_censoring),
    "no-shrinkage": Ablation({"shrinkage": 0.001}),  # each position is learned independently
    "no-levels": Ablation(forget=_forget_levels),
    "no-cost": Ablation(flat_cost=True, forget=_tell(seconds=None)),
    "no-clock": Ablation(forget=_tell(seconds=None)),  # the profile is trusted
    "no-hearing": Ablation(forget=_tell(shadow_accepts=())),  # at zero steps only probes measure the draft
    "no-hysteresis": Ablation(forget=_forget_hysteresis),
    "no-probing": Ablation({"probe_budget": 0.0}),
}


LOOKUPS = "lookups"
WITH_LOOKUPS = Ablation({"lookup": True})


def build(launch: Launch, ablation: Ablation = WHOLE, graph_batches: Sequence[int] | None = None) -> ThroughputPolicy:
    """Return a fresh policy, launched at the middle of the ladder with the profile of the trace."""
    options = ThroughputOptions(candidate_steps=launch.ladder, **{"lookup": False, **ablation.options})
    given = given_profile(launch, ablation.flat_cost)
    policy = ThroughputPolicy(launch.ladder[len(launch.ladder) // 2], options, given)
    policy.set_cuda_graph_bs(None if graph_batches is None else list(graph_batches))
    if ablation.forget is not None:
        ablation.forget(policy)
    return policy
