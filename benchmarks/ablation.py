"""The throughput policy with one part left out at a time, on the drawn suites.

    python -m benchmarks.ablation [ARGUMENTS OF sglang-adaptive simulate ...]

Each part can also be left out by itself: ``sglang-adaptive simulate --policy benchmarks.ablation:no_clock``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from sglang_adaptive.lab.simulate import command
from sglang_adaptive.lab.simulate.contenders import GRAPH_BATCHES, Launch, profile_of
from sglang_adaptive.lab.simulate.cost import RoundCost
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.policy.throughput.acceptance import AcceptanceEstimator

Forget = Callable[[ThroughputPolicy], None]
"""Disables a part of a policy."""


def whole(launch: Launch, forget: Forget = lambda policy: None, **options: Any) -> ThroughputPolicy:
    """Return a fresh policy as `simulate` makes it, with what *forget* changes; no option is refused."""
    options = {"candidate_steps": launch.ladder, "lookup": False, **options}
    profile = None if launch.given is None else profile_of(launch.given)
    policy = ThroughputPolicy(launch.ladder[len(launch.ladder) // 2], ThroughputOptions(**options), profile)
    policy.set_cuda_graph_bs(GRAPH_BATCHES)
    forget(policy)
    return policy


def _tell(**instead: Any) -> Forget:
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


def no_cost(launch: Launch) -> ThroughputPolicy:
    """Return a policy that knows no times: every depth of its profile has the same cost."""
    cost = launch.given
    if cost is not None:
        mean = cost.seconds.mean(axis=1, keepdims=True)
        cost = RoundCost(cost.batches, cost.steps, np.repeat(mean, len(cost.steps), axis=1))
    return no_clock(SimpleNamespace(ladder=launch.ladder, given=cost))


no_censoring = partial(whole, forget=_forget_censoring)
no_shrinkage = partial(whole, shrinkage=0.001)  # each position is learned independently
no_levels = partial(whole, forget=_forget_levels)
no_clock = partial(whole, forget=_tell(seconds=None))  # the profile is trusted
no_hearing = partial(whole, forget=_tell(shadow_accepts=()))  # at zero steps only probes measure the draft
no_probing = partial(whole, probe_budget=0.0)
PARTS = ("no_censoring", "no_shrinkage", "no_levels", "no_cost", "no_clock", "no_hearing", "no_probing")


def main(argv: Sequence[str]) -> int:
    """Play the whole policy and every ablation as ``simulate`` plays policies; return its exit code."""
    policies = ["throughput", *(f"benchmarks.ablation:{name}" for name in PARTS)]
    return command.main([*(word for name in policies for word in ("--policy", name)), *argv])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
