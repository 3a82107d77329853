"""What a probe may teach, and what probes may cost.

A probe is a few rounds at a depth that is not believed best. With ``gap`` the believed shortfall of its rate, as a
share, and ``sd`` the doubt about it, it is expected to improve a round by

    EI = sd * (phi(u) - u * Q(u)),   u = gap / sd          (phi, Q: density and upper tail of the normal)

Bound: before a probe starts it is charged the most that it may lose, in seconds against the live depth; once its
rounds were timed, the charge is settled at what it did lose. Charges never exceed ``budget * seconds served`` plus
``ALLOWANCE_ROUNDS`` rounds of the slowest kind served.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ALLOWANCE_ROUNDS = 8.0
FREE_PROBES = 4
"""Probes at one batch size before each has to be followed by REST_ROUNDS without any."""
LEARNING_ROUNDS = 150
"""They are free only so long after the first round there, or after a change of acceptance."""
REST_ROUNDS = 800
LONGER, MOST_RESTS = 4, 64
"""Each rest is LONGER times as long as the one before, up to MOST_RESTS * REST_ROUNDS, until acceptance changes."""
_ROOT = math.sqrt(2.0 * math.pi)


@dataclass(frozen=True, slots=True)
class Probe:
    """*rounds* rounds at *steps* near the batch size *anchor*."""

    steps: int
    rounds: int
    anchor: int
    charge: float
    """The most that it may lose, in seconds."""


def expected_improvement(gap: float, deviation: float) -> float:
    """Return the mean of ``max(0, X)`` for X normal around ``-gap``."""
    if deviation <= 0.0 or gap > 5.0 * deviation:
        return 0.0
    u = gap / deviation
    return deviation * (math.exp(-0.5 * u * u) / _ROOT - u * 0.5 * math.erfc(u / math.sqrt(2.0)))


class ProbeAccount:
    """What probes may still cost, what they have cost, and where they rest."""

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.started = 0
        self.charged_seconds = 0.0
        self.served_seconds = 0.0
        self._credit: float | None = None
        self._rests: dict[int, tuple[int, int, int]] = {}
        """By anchor: the round at which the rest ends, free probes used, the length of the next rest in REST_ROUNDS."""
        self._first: dict[int, int] = {}
        """By anchor: the round at which learning began there."""

    def earn(self, seconds: float) -> None:
        """Count a round that was served."""
        self.served_seconds += seconds
        if not self.budget:
            return
        full = ALLOWANCE_ROUNDS * seconds
        if self._credit is None:
            self._credit = full
        elif self._credit < full:
            self._credit = min(full, self._credit + self.budget * seconds)

    def inherit_from(self, former: ProbeAccount, lost_seconds: float) -> None:
        """Go on from *former*, whose probes have cost *lost_seconds*."""
        self.started, self.charged_seconds, self.served_seconds = former.started, lost_seconds, former.served_seconds
        self._credit = former._credit

    def affords(self, probe: Probe) -> bool:
        """Whether the credit covers the probe."""
        return self._credit is not None and probe.charge <= self._credit

    def pay(self, probe: Probe) -> None:
        """Charge a probe that starts now."""
        self._credit = (self._credit or 0.0) - probe.charge
        self.charged_seconds += probe.charge
        self.started += 1

    def refund(self, seconds: float) -> None:
        """Give back what a probe was charged too much."""
        self._credit = (self._credit or 0.0) + seconds
        self.charged_seconds -= seconds

    def learning(self, anchor: int, round_index: int) -> bool:
        """Whether this batch size is new, or acceptance changed lately."""
        return round_index - self._first.setdefault(anchor, round_index) < LEARNING_ROUNDS

    def rested(self, anchor: int, round_index: int) -> bool:
        """Whether there may be a probe near this batch size."""
        return round_index >= self._rests.get(anchor, (0, 0, 1))[0]

    def rest(self, anchor: int, round_index: int) -> None:
        """Let this batch size rest after a probe, unless it was one of the first."""
        _, used, length = self._rests.get(anchor, (0, 0, 1))
        if used + 1 < FREE_PROBES and self.learning(anchor, round_index):
            self._rests[anchor] = (0, used + 1, length)
        else:
            end = round_index + REST_ROUNDS * length
            self._rests[anchor] = (end, used + 1, min(MOST_RESTS, LONGER * length))

    def refresh(self) -> None:
        """End all rests and give every batch size one more free probe: acceptance has changed."""
        self._rests = {anchor: (0, min(used, FREE_PROBES) - 1, 1) for anchor, (_, used, _) in self._rests.items()}
        self._first.clear()
