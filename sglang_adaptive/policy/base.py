"""The interface that every policy implements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from sglang_adaptive.policy.observation import RoundObservation


@runtime_checkable
class AdaptivePolicy(Protocol):
    """Chooses the draft steps of the next round.

    The first five members are SGLang 0.5.23's ``AdaptiveSpecPolicy``; ``observe`` and ``snapshot`` are what
    this package adds. A policy is pure: no clock, no I/O, the same inputs give the same decisions, because
    every tensor-parallel rank runs its own copy.
    """

    name: str

    @property
    def candidate_steps(self) -> list[int]:
        """Every depth that the policy may choose, ascending; a runtime state is built for each."""

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Tell the policy which batch sizes have CUDA graphs; None when graphs are off."""

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Return the draft steps for the round about to start with *batch_size* requests."""

    def on_verify_complete(self, num_correct_drafts_per_req: Sequence[int], batch_size: int) -> int | None:
        """Learn from a round drafted at the live depth; return new steps, or None to stay."""

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """Return the CUDA-graph batch sizes at which *step* can be chosen; None when graphs are off."""

    def observe(self, observation: RoundObservation) -> int | None:
        """Learn from a round that says which depth drafted it; return new steps, or None to stay."""

    def snapshot(self) -> dict[str, Any]:
        """Return the policy's state as JSON builtins, for monitoring."""


@runtime_checkable
class ChoosesBudgets(Protocol):
    """A policy that may also choose how many drafts of a round to verify."""

    budget: int | None
    """Mean drafts to verify of a request in the round that was asked for last; None for all of them."""

    def allow_budgets(self, allowed: bool) -> None:
        """Choose budgets from now on, where the configuration asks for them, or none: what the server can verify."""


@runtime_checkable
class LearnsCost(Protocol):
    """A policy that also learns from the clock.

    Tensor-parallel ranks read different clocks and must decide alike. So readings change nothing by themselves: at
    rounds that the policy names, counted in rounds and hence the same on every rank, the first rank's table is handed
    to all of them, and between such rounds the table stands.
    """

    cost_sync_due: bool
    """Whether the table has to be handed over now; ``import_cost`` clears it."""

    def export_cost(self) -> dict[str, Any]:
        """Return what this rank has measured, as builtins."""

    def import_cost(self, payload: Mapping[str, Any]) -> None:
        """Decide on the first rank's measurements from now on."""
