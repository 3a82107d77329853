"""A whole policy: the deepest drafts within a token budget for verification, and near what was accepted lately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from sglang_adaptive.policy.base import AdaptivePolicy, register
from sglang_adaptive.policy.choice import Choice, Coming, drafted
from sglang_adaptive.policy.observation import RoundObservation
from sglang_adaptive.policy.options import PolicyOptions, depths, integer


@dataclass(frozen=True, slots=True)
class TokenBudgetOptions(PolicyOptions):
    candidate_steps: Annotated[tuple[int, ...], depths("depths that the policy may choose")] = (0, 1, 3, 7)
    tokens: Annotated[int, integer("draft tokens that a verify pass may read", 1, 100_000)] = 256


@register(TokenBudgetOptions)
class TokenBudgetPolicy(AdaptivePolicy):
    name = "token_budget"

    def __init__(self, initial_steps: int, options: TokenBudgetOptions) -> None:
        self.candidate_steps = list(options.candidate_steps)
        self._budget, self._accepted = options.tokens, float(self.candidate_steps[-1])

    def choose(self, coming: Coming) -> Choice:
        most = min(self._budget // coming.batch_size - 1, 2 * self._accepted + 1)
        return drafted(max((s for s in self.candidate_steps if s <= most), default=self.candidate_steps[0]))

    def observe(self, observation: RoundObservation) -> None:
        counts = observation.num_correct_drafts_per_req
        if counts and observation.steps:  # a round without drafts teaches nothing
            self._accepted += 0.1 * (sum(counts) / len(counts) - self._accepted)

    def snapshot(self) -> dict[str, Any]:
        return {"policy": self.name, "budget": self._budget, "accepted": self._accepted}
