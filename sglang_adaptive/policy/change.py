"""An explicit test for a change of acceptance: CUSUM of log-likelihood ratios (Page 1954), one sum up, one down.

Each drafted position that was reached is a coin with the believed probability ``h``. The up sum weighs it against
the coin whose log-odds are ``SHIFT`` higher, the down sum against ``SHIFT`` lower (or further, see below):

    S = max(0, S + sum_j [hits_j * ln(h'_j / h_j) + misses_j * ln((1 - h'_j) / (1 - h_j))])

A sum above the threshold is a change, and the last time that the sum was zero is the most likely moment of it, so
the counts since then are exactly what is worth keeping.
"""

from __future__ import annotations

import math

SHIFT = 0.8
"""Log-odds by which acceptance must move to be tested for; smaller moves are left to forgetting."""
WORTH_TRYING = 0.25
"""The up test looks for at least this acceptance: a draft that was useless has to become useful to matter."""
FALL = 0.75
"""The down test looks for at most this part of the acceptance: near 1 the log-odds move far before rates do."""
_GRID = 128
_LOWEST, _HIGHEST = 0.02, 0.98

Ratios = tuple[float, float, float, float]


def _ratios(h: float) -> Ratios:
    h = min(_HIGHEST, max(_LOWEST, h))
    odds = h / (1.0 - h)
    up = max(WORTH_TRYING, odds * math.exp(SHIFT) / (1.0 + odds * math.exp(SHIFT)))
    down = min(FALL * h, odds * math.exp(-SHIFT) / (1.0 + odds * math.exp(-SHIFT)))
    return (
        math.log(up / h),
        math.log((1.0 - up) / (1.0 - h)),
        math.log(down / h),
        math.log((1.0 - down) / (1.0 - h)),
    )


_TABLE: tuple[Ratios, ...] = tuple(_ratios(index / _GRID) for index in range(_GRID + 1))


class ChangeDetector:
    """The two sums over all positions, and the counts as they were when each sum was last zero."""

    __slots__ = ("_down", "_down_mark", "_threshold", "_up", "_up_mark", "ratios")

    def __init__(self, conditional: list[float], threshold: float) -> None:
        self._threshold = threshold
        self._up = self._down = 0.0
        self._up_mark = self._down_mark = ([0.0] * len(conditional), [0.0] * len(conditional))
        self.ratios: list[Ratios] = []
        """By position: (up hit, up miss, down hit, down miss), in nats."""
        self.believe(conditional)

    @property
    def rising(self) -> bool:
        """Whether there is evidence of a change upwards, however little."""
        return self._up > 0.0

    def believe(self, conditional: list[float]) -> None:
        """Take *conditional* as the acceptance that later rounds are tested against."""
        self.ratios = [_TABLE[int(h * _GRID)] for h in conditional]

    def mark(self, hits: list[float], reached: list[float]) -> None:
        """Remember the counts before a round, wherever a change could start with it."""
        if not self._up:
            self._up_mark = (hits[:], reached[:])
        if not self._down:
            self._down_mark = (hits[:], reached[:])

    def step(self, up: float, down: float, wary: bool) -> tuple[list[float], list[float]] | None:
        """Add a round's two log-likelihood ratios; half the evidence of a fall is enough when *wary*.

        Return the marked counts to drop when acceptance has changed, else None.
        """
        self._up = up = max(0.0, self._up + up)
        self._down = down = max(0.0, self._down + down)
        if up > self._threshold:
            return self._up_mark
        needed = 0.5 * self._threshold if wary else self._threshold
        return self._down_mark if down > needed else None

    def scale(self, factor: float) -> None:
        """Multiply the remembered counts by *factor*, as their owner does with its own."""
        for mark in {id(m): m for m in (self._up_mark, self._down_mark)}.values():
            for counts in mark:
                counts[:] = [value * factor for value in counts]

    def restart(self) -> None:
        """Begin both sums anew: the counts were replaced."""
        self._up = self._down = 0.0
