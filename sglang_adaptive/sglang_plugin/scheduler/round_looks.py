"""Numbers that the device tells of a round's drafts, on the round's result (verify_budget/looks.py sends them)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_adaptive.policy.observation import BudgetEvidence
from sglang_adaptive.runtime.calibration import BINS
from sglang_adaptive.runtime.drafted import Look

if TYPE_CHECKING:
    from torch import Tensor

_ON_RESULT = "_sglang_adaptive_look"


@dataclass(frozen=True, slots=True)
class Told:
    """The numbers of a round on their way to the host; valid once its result has arrived."""

    numbers: Tensor
    """int64, on the host: verified and completed drafts by request, if there is a budget; then, if there are budgets
    to tell of, the accepted drafts, those of ``looks.kept``, and those of ``looks.calibration``."""

    requests: int
    """Of the round."""
    budget: int | None
    """Mean drafts verified of a request; None for all."""
    steps: int
    """The first so many steps that were looked at."""
    budgets: Sequence[int]
    """Those that the look tells of, ascending; empty where only the round's own is told of."""

    def attach(self, result: Any) -> None:
        """Let *result*, of this round, carry them."""
        setattr(result, _ON_RESULT, self)

    def look(self) -> Look:
        """Return them as the policy is told."""
        numbers = self.numbers.tolist()
        verified = done = ()
        if self.budget is not None:
            verified, done = numbers[: self.requests], numbers[self.requests : 2 * self.requests]
            numbers = numbers[2 * self.requests :]
        if not numbers:
            return Look(budget=self.budget, verified=verified, completed=done)
        count = len(self.budgets)
        whole, counts = numbers[0], numbers[2 * count + 1 :]
        ranked, uniform = numbers[1 : count + 1], numbers[count + 1 : 2 * count + 1]
        kept = [dict(zip(self.budgets, sums, strict=True)) for sums in (ranked, uniform)]
        trials, believed, accepted = (counts[part * BINS : (part + 1) * BINS] for part in range(3))
        evidence = BudgetEvidence(self.steps, whole, *kept)
        return Look(evidence, trials, believed, accepted, self.budget, verified, done)


def look_of(result: Any) -> Look | None:
    """Return what *result*, which has arrived on the host, carries; None where its round was not looked at."""
    told: Told | None = getattr(result, _ON_RESULT, None)
    return None if told is None else told.look()
