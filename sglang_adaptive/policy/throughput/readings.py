"""Round times from this server's clock, waiting to be shared.

A reading is split into a part common to all rounds and a part specific to its cell (``cost``). The first readings after
an absence of a batch size and steps are compared with the slowdown of the rounds before them, so they update the cell.
Later ones update the slowdown: any change within one cell, such as a longer context, a lower clock or a neighbor's
work, is assumed to be common until another cell is timed.

Only rank 0's readings count. They change no decision until the exported table returns through ``CostModel.load``.
"""

from __future__ import annotations

import math
from typing import Any

from sglang_adaptive.policy.observation import ZeroCycle

FRESH = 16
"""Readings after an absence that update the cell: the median of so many is within 1%, single ones scatter by 2.5%."""
DISTURBED, SHORT = 0.05, 8
"""Difference (log) between two visits of which one must have been disturbed, if the earlier one was short: then the
lower median counts, because disturbances make rounds longer, and from SHORT readings on the later visit's. A probe of
drafted steps yields 4 at most."""
MOST = 31.0
"""Maximum weight of a cell's value in readings, so that later ones can correct it."""
MEDIAN = 7
"""Readings of a median: it outvotes three in a row that a neighbor or a prefill disturbed."""
ABSENT_ROUNDS = 64
"""Rounds without a reading after which a cell learns again, because its context or clock may have changed."""
STALL, STALL_ROUNDS = 0.3, 128
"""A reading too long by this much (log) is ignored, for at most this many rounds in a row: a stalling host doubles
round times for half a second."""


class Cell:
    """Log-ratio of one batch size and number of steps to the base table, without the common slowdown."""

    __slots__ = ("_before", "_fresh", "_start", "last_round", "ratio", "readings", "weight")

    def __init__(self) -> None:
        self.ratio = self.weight = self._start = self._before = 0.0
        """Value and its weight in readings; then both before the fresh readings."""
        self._fresh: list[float] = []
        self.readings = 0
        """Total readings."""
        self.last_round = -ABSENT_ROUNDS

    def enter(self, round_index: int) -> None:
        """Note a timed round; after an absence the next readings update the cell again."""
        if round_index - self.last_round >= ABSENT_ROUNDS:
            self._fresh, self._start, self._before = [], self.ratio, self.weight
        self.last_round = round_index

    def learn(self, value: float) -> bool:
        """Add a reading without the slowdown; return False if the cell already has its fresh readings."""
        fresh = self._fresh
        if len(fresh) >= FRESH:
            return False
        fresh.append(value)
        median, before = _median(fresh), self._before
        self.weight = min(MOST, before + len(fresh))
        self.ratio = self._start + (median - self._start) * len(fresh) / self.weight
        if 0.0 < before < FRESH and abs(median - self._start) > DISTURBED:
            self.ratio = min(self._start, median) if len(fresh) < SHORT else median
        return True


class Readings:
    """The cells timed on this server, and their common slowdown."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], Cell] = {}
        """By anchor batch size and steps; a lookup round has as many as drafts."""
        self.drift = 0.0
        """Log of how much slower rounds are than the base table and their cells say."""
        self._round = 0
        self._current: Cell | None = None
        self._errors: list[float] = []
        self._slow_rounds = 0
        self._cycle = ZeroCycle()

    def skip(self, steps: int, extended: bool = True) -> None:
        """Note a round of *steps* that could not be timed; *extended* is as in ``RoundObservation``."""
        self._round += 1
        if steps:
            self._cycle.begin()
        else:
            self._cycle.add(None, extended)

    def add(self, anchor: int, steps: int, base: float, seconds: float, extended: bool = True) -> None:
        """Add a round of *seconds*; *base* is the log of its seconds in the base table."""
        self._round += 1
        place = anchor, steps
        cell = self.cells.get(place)
        if cell is None:
            cell = self.cells[place] = Cell()
        if cell is not self._current:
            self._current = cell
            self._cycle.restart()
        rounds = 1
        if steps:
            self._cycle.begin()
        else:
            cycle = self._cycle.add(seconds, extended)
            if cycle is None:
                return
            seconds, rounds = cycle
        cell.readings += rounds
        cell.enter(self._round)
        value = math.log(seconds) - base - self.drift
        if self._stalls(cell, value - cell.ratio, rounds) or cell.learn(value):
            return
        self._errors.append(value - cell.ratio)
        if len(self._errors) == MEDIAN:
            self.drift += _median(self._errors)
            self._errors = []

    def export(self) -> dict[str, Any]:
        """Return slowdown and cells as builtins, as ``CostModel.load`` takes them."""
        timed = ((place, cell) for place, cell in self.cells.items() if cell.weight)
        cells = [[*place, cell.ratio, cell.weight] for place, cell in timed]
        return {"drift": self.drift, "cells": cells}

    def _stalls(self, cell: Cell, error: float, rounds: int) -> bool:
        """Whether to ignore a reading because it is so long that the host must have stalled."""
        self._slow_rounds = self._slow_rounds + rounds if cell.weight >= MEDIAN and error > STALL else 0
        return 0 < self._slow_rounds <= STALL_ROUNDS


def _median(values: list[float]) -> float:
    """Return the lower median, because disturbances make rounds longer."""
    return sorted(values)[(len(values) - 1) // 2]
