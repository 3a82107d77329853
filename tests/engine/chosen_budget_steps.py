"""Budgets chosen by a policy, on SGLang's scheduler in this process; run as a process, it prints each run's results.

*scripted* switches among zero steps, rectangles and budgets from round to round; *throughput* is the real policy, with
round times under which verified tokens are expensive or cheap.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from sglang_adaptive.lab.simulate.ours import KEY
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.profile import CostProfile, ProfileCell, ordered
from sglang_adaptive.policy.throughput import ThroughputOptions, ThroughputPolicy
from sglang_adaptive.policy.throughput import budgets as folding
from sglang_adaptive.runtime import budgets
from sglang_adaptive.sglang_plugin.admin.server_info import add_adaptive
from sglang_adaptive.sglang_plugin.verify_budget import looks, rounds
from tests.engine.budget_steps import TOKENS, BudgetStepper
from tests.engine.stepping import TIERS

PLACES = ((7, 3), (7, None), (3, 1), (0, None), (7, 1), (3, None), (1, None))
"""Steps and budget of consecutive rounds."""


class Scripted:
    """A policy that cycles through PLACES."""

    name, candidate_steps = "scripted", TIERS

    def __init__(self) -> None:
        self._turns = itertools.cycle(PLACES)
        self.budget: int | None = None

    def allow_budgets(self, allowed: bool) -> None:
        """Ignored: it always chooses budgets."""

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Not needed."""

    def cuda_graph_bs_for_step(self, step: int) -> None:
        """Graphs are off."""

    def get_steps_for_batch(self, batch_size: int) -> int:
        steps, self.budget = next(self._turns)
        return steps

    def observe(self, observation: RoundObservation) -> None:
        """Ignored."""

    def snapshot(self) -> dict[str, Any]:
        return {}


class ChoosingStepper(BudgetStepper):
    """A scheduler whose policy chooses."""

    CONFIG: Mapping[str, Any] = {"throughput": {"candidate_steps": TIERS, "verify_budget": True}}

    def run_by(self, policy: Any, depths: Sequence[int] = (), overlap: bool = True) -> dict[str, Any]:
        """Run the requests of KINDS as *policy* chooses, or at *depths*."""
        self.controller.replace_policy(policy, by="test")
        told: list[dict[str, Any]] = []
        observe = policy.observe

        def heard(observation: RoundObservation) -> Any:
            told.append(asdict(observation))
            return observe(observation)

        before = self.controller.budget_report()["rounds"]
        # Keep the profile's times: a busy CPU's would differ in every run.
        with (
            mock.patch.object(policy, "observe", heard),
            mock.patch.object(self.controller._clock, "read", lambda *_: None),
        ):
            found = self.run(lambda _: self._arrive(depths), every=8, overlap=overlap)
        return {
            "outputs": found["outputs"],
            "free_slots": found["free_slots"],
            "logprobs": self.reqs["logprobs"].logprob.output_token_logprobs_val[:TOKENS],
            "told": told,
            "before": before,
            "report": self._budgets(),
        }

    def _budgets(self) -> dict[str, Any]:
        """Return what /server_info reports about packed rounds."""
        state: dict[str, Any] = {}
        add_adaptive(state)
        found: dict[str, Any] = state["adaptive"]["verify_budget"]
        return found


def dear_to_verify() -> ThroughputPolicy:
    """Return the policy on a device where a verified token costs a third of a plain round, and a draft nothing."""
    times = {
        (batch, steps): 1.0 + 0.001 * steps + 0.3 * batch * (steps + 1) for batch in range(1, 9) for steps in TIERS
    }
    cells = ordered(ProfileCell(batch, steps, t / 100) for (batch, steps), t in times.items())
    options = ThroughputOptions(candidate_steps=tuple(TIERS), verify_budget=True)
    return ThroughputPolicy(3, options, CostProfile(KEY, cells))


def failing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return *original*, failing at its tenth call."""
    calls = itertools.count(1)

    def fail(*args: Any) -> Any:
        if next(calls) == 10:
            raise RuntimeError("broken")
        return original(*args)

    return fail


def main() -> None:
    folding.FOLD_ROUNDS = 4
    folding.LEAST_REQUESTS = budgets.LEAST_REQUESTS = 1
    lab = ChoosingStepper(Path(sys.argv[1]), "EAGLE3", None)
    torch.manual_seed(0)
    found = {
        "undrafted": lab.run_by(Scripted(), (0,)),
        "scripted": lab.run_by(Scripted()),
        "scripted, no overlap": lab.run_by(Scripted(), overlap=False),
        "throughput": lab.run_by(dear_to_verify()),
    }
    live = lab.round.budgets
    assert live is not None
    for part in (rounds, "ranks"), (looks, "completed"):
        with mock.patch.object(*part, failing(getattr(*part))):
            found[f"an error in {part[1]}"] = lab.run_by(Scripted())
        lab.round.budgets, lab.round.why_no_budgets, live.guard.closed = live, None, False
        lab.controller.allow_budgets()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
