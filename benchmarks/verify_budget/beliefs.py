"""How sure the draft is of a token, and how often such tokens are right: known beforehand, or learnt in service."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from sglang_adaptive.traces import CHAIN, LEVELS, Trace

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
PRIOR = 8.0
"""Drafts that what is believed without counts weighs as."""

MOST = 0.999
"""No draft is sure, so products fall along a chain and what is kept of it is a prefix."""


class Belief(Protocol):
    """Probability that a draft is right, given that those before it in its chain are."""

    def chances(self, rows: IntArray, steps: int) -> FloatArray:
        """Return [requests, steps] of the chains that start at *rows* of the trace."""

    def hear(self, rows: IntArray, kept: IntArray, right: IntArray) -> None:
        """Learn from a round: of each chain so many drafts were verified, and so many of them right."""


class Plain:
    """The draft's own probability, as it is."""

    def __init__(self, trace: Trace) -> None:
        self._chances = np.minimum(trace.probabilities().astype(float), MOST)

    def chances(self, rows: IntArray, steps: int) -> FloatArray:
        return np.asarray(self._chances[rows, :steps])

    def hear(self, rows: IntArray, kept: IntArray, right: IntArray) -> None:
        """Learn nothing."""


class Beforehand:
    """Shares by position and level, of one half of the requests for the other half."""

    def __init__(self, trace: Trace) -> None:
        half = np.repeat(np.arange(len(trace.length)) % 2, trace.length)
        self._chances = np.zeros((len(half), CHAIN))
        position = np.arange(CHAIN)
        for own in (0, 1):
            other, rows = half != own, half == own
            right, tried = _counts(trace.accepted[other], trace.confidence[other])
            prior = (np.arange(LEVELS) + 0.5) / LEVELS
            share = (right + PRIOR * prior) / (tried + PRIOR)
            self._chances[rows] = share[position, trace.confidence[rows]]
        self._chances = np.minimum(self._chances, MOST)

    def chances(self, rows: IntArray, steps: int) -> FloatArray:
        return np.asarray(self._chances[rows, :steps])

    def hear(self, rows: IntArray, kept: IntArray, right: IntArray) -> None:
        """Learn nothing."""


class Learnt:
    """Counts made while serving, of verified drafts alone: by level, and with *positions* by position as well.

    A level starts as the probability itself, and a level at a position as the level.
    """

    def __init__(self, trace: Trace, positions: bool) -> None:
        self._levels, self._positions = trace.confidence, positions
        self._right, self._tried = np.zeros((CHAIN, LEVELS)), np.zeros((CHAIN, LEVELS))
        self._stale = True
        self._share = np.zeros((CHAIN, LEVELS))

    def chances(self, rows: IntArray, steps: int) -> FloatArray:
        if self._stale:
            self._share, self._stale = self._shares(), False
        return np.asarray(self._share[np.arange(steps), self._levels[rows, :steps]])

    def hear(self, rows: IntArray, kept: IntArray, right: IntArray) -> None:
        position = np.arange(CHAIN)
        judged = position < np.minimum(kept, right + 1)[:, None]
        request, at = np.nonzero(judged)
        level = self._levels[rows[request], at]
        np.add.at(self._tried, (at, level), 1.0)
        np.add.at(self._right, (at, level), at < right[request])
        self._stale = True

    def _shares(self) -> FloatArray:
        prior = (np.arange(LEVELS) + 0.5) / LEVELS
        together = (self._right.sum(axis=0) + PRIOR * prior) / (self._tried.sum(axis=0) + PRIOR)
        found = np.broadcast_to(together, self._tried.shape)
        if self._positions:
            found = (self._right + PRIOR * together) / (self._tried + PRIOR)
        return np.minimum(found, MOST)


def _counts(accepted: npt.NDArray[np.uint8], levels: npt.NDArray[np.uint8]) -> tuple[FloatArray, FloatArray]:
    """Return [position, level] how often a draft was right, and how often those before it were."""
    right, tried = np.zeros((CHAIN, LEVELS)), np.zeros((CHAIN, LEVELS))
    for position in range(CHAIN):
        reached = accepted >= position
        tried[position] = np.bincount(levels[reached, position], minlength=LEVELS)
        right[position] = np.bincount(levels[accepted > position, position], minlength=LEVELS)
    return right, tried


BELIEFS = {
    "as it is": Plain,
    "learnt by probability": lambda trace: Learnt(trace, positions=False),
    "learnt by probability and position": lambda trace: Learnt(trace, positions=True),
    "known beforehand": Beforehand,
}
"""What makes each belief of a trace, from the least that a server could know to the most."""
