"""The noise of round times as servers recorded it (``benchmarks/noise``).

A disturbance is a reading over the mean of its cell, which is the batch size, the steps and, at zero steps, the rounds
since the draft extend. The mean and not the median: what a late arrival adds to one reading, the next one lacks, so the
machine's own time is the mean, while the median of a cell with two modes is either one. Disturbances stay in the order
of the rounds, so late arrivals with the short readings after them, bursts and spells are drawn as they were.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np

from sglang_adaptive.lab.simulate.cost import FloatArray, SimulationError
from sglang_adaptive.lab.simulate.rounds import Rounds, read_rounds

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks" / "noise"
"""Only in a checkout. A file is called KIND-MODEL.rounds.gz."""
KINDS: Mapping[str, str] = {
    "gpu": "rounds paced by the GPU",
    "host": "rounds paced by the host",
    "busy": "rounds paced by a busy host",
}
FEWEST = 8
"""Cells with fewer readings are left out: their mean is a guess."""


def shipped() -> bool:
    """Return whether this installation has recordings."""
    return FOLDER.is_dir()


def factors(kind: str, rounds: int, rng: np.random.Generator) -> FloatArray:
    """Return the factor by which the reading of each of *rounds* differs from the round's time.

    They are one stretch of one recording of *kind*, from a random round on, repeated as needed.

    Raises:
        SimulationError: this installation has no recording of *kind*.
    """
    found = recordings(kind)
    one = found[rng.integers(len(found))]
    return np.take(one, rng.integers(len(one)) + np.arange(rounds), mode="wrap")


@cache
def recordings(kind: str) -> tuple[FloatArray, ...]:
    """Return the disturbances of each recording of *kind*.

    Raises:
        SimulationError: there is none.
    """
    files = sorted(FOLDER.glob(f"{kind}-*.rounds.gz"))
    if not files:
        raise SimulationError(f"noise {kind}: this installation has no recordings; expected a checkout")
    return tuple(disturbances(read_rounds(file)) for file in files)


def disturbances(rounds: Rounds) -> FloatArray:
    """Return each timed round's reading over the mean of its cell, in order."""
    readings: list[tuple[tuple[int, int, int], float]] = []
    cells = defaultdict(list)
    since = 0
    for one in rounds.stream:
        cell = len(one.requests), one.steps, since
        since = 0 if one.extended else since + 1
        if one.timed:
            readings.append((cell, one.since_last))
            cells[cell].append(one.since_last)
    means = {cell: fmean(found) for cell, found in cells.items() if len(found) >= FEWEST}
    return np.array([seconds / means[cell] for cell, seconds in readings if cell in means])
