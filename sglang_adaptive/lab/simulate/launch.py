"""What a policy is started with."""

from __future__ import annotations

from typing import Protocol

from sglang_adaptive.lab.simulate.cost import RoundCost


class Launch(Protocol):
    """The part of a run that a server knows before its first round."""

    @property
    def ladder(self) -> tuple[int, ...]:
        """Depths that may be chosen, ascending."""

    @property
    def given(self) -> RoundCost | None:
        """The cost profile handed to the policy; None for a start without one."""
