"""What every trace of a run shares."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_adaptive.lab.simulate.cost import RoundCost

DEFAULT_TRACES = 56
DEFAULT_ROUNDS = 1600
LARGEST_BATCH = 64


@dataclass(frozen=True)
class Setting:
    """The true cost, and how much is drawn."""

    cost: RoundCost
    rounds: int = DEFAULT_ROUNDS
    traces: int = DEFAULT_TRACES
    seed: int = 0

    @property
    def ladder(self) -> tuple[int, ...]:
        """Depths that may be chosen: those that were measured."""
        return self.cost.steps

    @property
    def max_batch(self) -> int:
        """Largest batch: 64, or the largest measured one when that is smaller."""
        return min(LARGEST_BATCH, self.cost.batches[-1])
