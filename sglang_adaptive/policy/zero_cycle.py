"""Zero-step rounds are timed together: one in ZERO_CYCLE runs the draft's extend, and takes longer than the others.

So the mean of a whole cycle is what a round takes; a median of single rounds would leave the extend out.
"""

from __future__ import annotations

from sglang_adaptive.policy.schema import ZERO_STEP_EXTEND_EVERY

ZERO_CYCLE = int(ZERO_STEP_EXTEND_EVERY.default)
"""Rounds of a cycle."""


class ZeroCycle:
    """Gathers the seconds of zero-step rounds until they make a cycle."""

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def add(self, seconds: float) -> float | None:
        """Take in a round's *seconds*; return the mean of the cycle that it completes, None if it completes none."""
        self._seconds.append(seconds)
        if len(self._seconds) < ZERO_CYCLE:
            return None
        mean = sum(self._seconds) / ZERO_CYCLE
        self._seconds.clear()
        return mean

    def restart(self) -> None:
        """Drop the rounds of the cycle under way."""
        self._seconds.clear()
