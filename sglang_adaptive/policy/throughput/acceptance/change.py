"""An explicit test for a change of acceptance: CUSUM of log-likelihood ratios (Page 1954), two sums up, one down.

Each drafted position that was reached is a coin with the believed probability ``h``. The up sums weigh it against
the coins whose log-odds are ``SHIFT`` and ``FAR_SHIFT`` higher, the down sum against ``SHIFT`` lower (or further, see
below). The far sum finds a draft that becomes good at once in half the coins, which are few at zero steps:

    S = max(0, S + sum_j [hits_j * ln(h'_j / h_j) + misses_j * ln((1 - h'_j) / (1 - h_j))])

A sum above the threshold is a change, and the last time that the sum was zero is the most likely moment of it, so
the counts since then are exactly what is worth keeping.
"""

from __future__ import annotations

import math

SHIFT = 0.8
"""Log-odds by which acceptance must move to be tested for; smaller moves are left to forgetting."""
FAR_SHIFT, FAR_MORE = 2.4, 1.0
"""The same for the far sum, and the nats by which it must exceed the threshold: two sums err more often than one."""
WORTH_TRYING = 0.25
"""The up test looks for at least this acceptance: a draft that was useless has to become useful to matter."""
FALL = 0.75
"""The down test looks for at most this part of the acceptance: near 1 the log-odds move far before rates do."""
WARY, SCARCE = 0.5, 0.7
"""Parts of the threshold that are enough: for a fall where speculation has been losing; and at zero steps, where one
round in many says something, so that chance has as few occasions."""
LASTING_ROUNDS, DOUBLED = 512, math.log(2.0)
"""Rounds for which the threshold holds, and the nats that it grows by when they double, and double again: the longer
nothing has changed, the less likely is a change, and the more occasions had chance."""
PROMISING = 1.0
"""Evidence (nats) of a change upwards that makes one want to hear more."""
_GRID = 128
"""Ratios are kept ready for this many acceptances, evenly spaced from 0 to 1."""
_LOWEST, _HIGHEST = 0.02, 0.98
"""What is believed beyond these is tested as if it were these: at 0 and 1 a single draft would be infinite evidence."""

Ratios = tuple[float, float, float, float, float, float]


def _ratios(h: float) -> Ratios:
    h = min(_HIGHEST, max(_LOWEST, h))
    up, far = max(WORTH_TRYING, _shifted(h, SHIFT)), max(WORTH_TRYING, _shifted(h, FAR_SHIFT))
    down = min(FALL * h, _shifted(h, -SHIFT))
    return (*_against(up, h), *_against(far, h), *_against(down, h))


def _shifted(h: float, log_odds: float) -> float:
    odds = h / (1.0 - h) * math.exp(log_odds)
    return odds / (1.0 + odds)


def _against(other: float, h: float) -> tuple[float, float]:
    """Return the log-likelihood ratios of a hit and of a miss."""
    return math.log(other / h), math.log((1.0 - other) / (1.0 - h))


_TABLE: tuple[Ratios, ...] = tuple(_ratios(index / _GRID) for index in range(_GRID + 1))


class ChangeDetector:
    """The sums over all positions, and the counts as they were when each sum was last zero."""

    __slots__ = ("_down", "_down_mark", "_far", "_far_mark", "_rounds", "_threshold", "_up", "_up_mark", "ratios")

    def __init__(self, conditional: list[float], threshold: float) -> None:
        self._threshold = threshold
        self._rounds = 0
        """Rounds tested since the counts were last replaced."""
        self._up = self._far = self._down = 0.0
        self._up_mark = self._far_mark = self._down_mark = [[0.0] * len(conditional) for _ in range(4)]
        self.ratios: list[Ratios] = []
        """By position: (up hit, up miss, far hit, far miss, down hit, down miss), in nats."""
        self.believe(conditional)

    @property
    def rising(self) -> bool:
        """Whether there is evidence of a change upwards, however little."""
        return self._up > 0.0

    @property
    def promising(self) -> bool:
        """Whether there is more evidence of a change upwards than a draft that is seldom right leaves now and then."""
        return max(self._up, self._far) > PROMISING

    def believe(self, conditional: list[float]) -> None:
        """Take *conditional* as the acceptance that later rounds are tested against."""
        self.ratios = [_TABLE[int(h * _GRID)] for h in conditional]

    def mark(self, counts: list[list[float]]) -> None:
        """Remember the counts before a round, wherever a change could start with it."""
        if self._up and self._far and self._down:
            return
        now = [values[:] for values in counts]  # one copy for all: marks are read, and scaled once each
        if not self._up:
            self._up_mark = now
        if not self._far:
            self._far_mark = now
        if not self._down:
            self._down_mark = now

    def step(
        self, up: float, far: float, down: float, wary: bool, scarce: bool = False
    ) -> list[list[float]] | None:
        """Add a round's log-likelihood ratios; WARY and SCARCE say what *wary* and *scarce* change.

        Return the marked counts to drop when acceptance has changed, else None.
        """
        threshold = self._threshold + DOUBLED * (self._rounds // LASTING_ROUNDS).bit_length()
        self._rounds += 1
        if scarce:
            threshold *= SCARCE
        self._up = up = max(0.0, self._up + up)
        self._far = far = max(0.0, self._far + far)
        self._down = down = max(0.0, self._down + down)
        if up > threshold:
            return self._up_mark
        if far > threshold + FAR_MORE:
            return self._far_mark
        return self._down_mark if down > (WARY * threshold if wary else threshold) else None

    def scale(self, factor: float) -> None:
        """Multiply the remembered counts by *factor*, as their owner does with its own."""
        for mark in {id(m): m for m in (self._up_mark, self._far_mark, self._down_mark)}.values():
            for counts in mark:
                counts[:] = [value * factor for value in counts]

    def restart(self) -> None:
        """Begin the sums anew: the counts were replaced."""
        self._up = self._far = self._down = 0.0
        self._rounds = 0
