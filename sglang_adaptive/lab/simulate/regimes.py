"""Quantities that stay constant for a while and then jump."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHORTEST, LONGEST = 60, 400
"""Rounds in a regime, both inclusive."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """A value for each round, and the rounds at which it changes (the first round left out)."""

    values: NDArray[np.float64]
    changes: tuple[int, ...] = ()


def constant(value: float, rounds: int) -> Schedule:
    """Return one regime."""
    return Schedule(np.full(rounds, float(value)))


def switching(rounds: int, rng: np.random.Generator, draw: Callable[[], float]) -> Schedule:
    """Return regimes of uniformly random length with independently drawn values."""
    values: list[float] = []
    changes: list[int] = []
    while len(values) < rounds:
        changes.append(len(values))
        values += [draw()] * int(rng.integers(SHORTEST, LONGEST + 1))
    return Schedule(np.array(values[:rounds]), tuple(changes[1:]))


def alternating(rounds: int, period: int, first: float, second: float) -> Schedule:
    """Return *first* for *period* rounds, then *second*, and so on."""
    phase = np.arange(rounds) // period
    return Schedule(np.where(phase % 2 == 0, first, second), tuple(range(period, rounds, period)))


def random_p(rng: np.random.Generator) -> float:
    """Draw the acceptance of the first position: uniform in 0.2..0.95."""
    return float(rng.uniform(0.2, 0.95))


def random_decay(rng: np.random.Generator) -> float:
    """Draw the acceptance left from one position to the next: uniform in 0.93..1."""
    return float(rng.uniform(0.93, 1.0))


def random_batch(rng: np.random.Generator, max_batch: int) -> float:
    """Draw a batch size in 1..max_batch, uniform half of the time, else log-uniform: no size is rare."""
    if rng.random() < 0.5:
        return float(rng.integers(1, max_batch + 1))
    return float(min(max_batch, int(np.exp(rng.uniform(0.0, np.log(max_batch + 1))))))
