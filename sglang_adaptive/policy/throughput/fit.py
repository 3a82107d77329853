"""Times of the kinds at one batch size, fitted to differences, levels and what other batch sizes suggest.

The sum that docs/how-it-decides.md shows is minimized by least squares with weights 1 / (s^2 + error^2), a few times
over (Holland and Welsch 1977), first without the shape, so that a wrong profile does not outweigh measurements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from sglang_adaptive.policy.throughput.base_cost import GUESSED
from sglang_adaptive.policy.throughput.readings import LONE

TURNS = 4
"""Times that the weights are found. With 5 the turns of an emulated replay change by 0.003 at most."""
_LITTLE = 1e-4
"""Weight that keeps the first turn solvable."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was measured at one batch size, as ``Place.export`` in ``readings`` returns it."""

    latest: int
    """The kind that ran last."""
    own: Sequence[tuple[int, float, float, int]]
    """Kind, level, deviation and readings."""
    pairs: Sequence[tuple[int, int, float, float, int]]
    """Two kinds, their difference, its deviation, and the differences behind it."""

    def like(self, other: Evidence | None, change: float) -> bool:
        """Whether *other* says the same, but for changes of levels by less than *change*."""
        if other is None or self.latest != other.latest or self.pairs != other.pairs or len(self.own) != len(other.own):
            return False
        both = zip(self.own, other.own, strict=True)
        return all(one[0] == two[0] and abs(one[1] - two[1]) < change for one, two in both)


@dataclass(frozen=True, slots=True)
class Fit:
    """By kind, log-ratios to the kind that ran last, and their standard deviations."""

    ratio: Mapping[int, float]
    deviation: Mapping[int, float]


def fit(evidence: Evidence, shape: Mapping[int, tuple[float, float]]) -> Fit:
    """Return the fit of the kinds in *evidence* and *shape*, which has the ``g_k`` and ``s`` of each expected kind."""
    kinds = sorted({*(kind for kind, *_ in evidence.own), *shape})
    index = {kind: at for at, kind in enumerate(kinds)}
    own = [(index[kind], level, deviation**2) for kind, level, deviation, _ in evidence.own]
    pairs = [(index[a], index[b], value, deviation**2) for a, b, value, deviation, _ in evidence.pairs]
    expected = [shape.get(kind, (0.0, GUESSED)) for kind in kinds]
    measured = {at for at, *_ in own}
    errors = [0.0] * len(pairs)
    x, level, matrix = [0.0] * len(kinds), 0.0, []
    for turn in range(TURNS):
        matrix, right = [[0.0] * len(kinds) for _ in kinds], [0.0] * len(kinds)
        for at, value, variance in own:
            weight = 1.0 / (variance + (x[at] - value) ** 2 if turn else variance)
            matrix[at][at] += weight
            right[at] += weight * value
        for (a, b, value, variance), error in zip(pairs, errors, strict=True):
            weight = 1.0 / (variance + error**2)
            matrix[a][a] += weight
            matrix[b][b] += weight
            matrix[a][b] -= weight
            matrix[b][a] -= weight
            right[a] -= weight * value
            right[b] += weight * value
        for at, (away, deviation) in enumerate(expected):
            error = x[at] - level - away if at in measured else 0.0
            weight = 1.0 / (deviation**2 + error**2) if turn else _LITTLE
            matrix[at][at] += weight
            right[at] += weight * (level + away) if turn else 0.0
        x = [found[0] for found in solved(matrix, [[value] for value in right])]
        level = median(x[at] - expected[at][0] for at in measured)
        errors = [x[b] - x[a] - value for a, b, value, _ in pairs]
    now = index[evidence.latest]
    inverse = solved(matrix, [[float(row == column) for column in range(len(kinds))] for row in range(len(kinds))])
    deviations = []
    for at in range(len(kinds)):
        variance = max(1e-9, inverse[at][at] + inverse[now][now] - 2.0 * inverse[now][at])
        # Facts that contradict the fit say that it may be as wrong itself, unless other facts hold it. So does the
        # shape: without it, one late reading hid the best depth for 2,000 rounds (0.932 of its speed on recorded text).
        found = [(error**2, pair[3]) for pair, error in zip(pairs, errors, strict=True) if at in pair[:2] and at != now]
        if shape and at in measured and at != now:
            away, deviation = expected[at]
            found.append(((x[at] - level - away) ** 2, max(LONE, deviation) ** 2))
        wrong, its = max(found, default=(0.0, 1.0))
        deviations.append(math.sqrt(variance + wrong * variance / (variance + its)))
    return Fit({kind: x[at] - x[now] for kind, at in index.items()}, dict(zip(kinds, deviations, strict=True)))


def solved(matrix: Sequence[list[float]], right: Sequence[list[float]]) -> list[list[float]]:
    """Return the solution of a symmetric positive definite system for each column of *right* (Gauss-Jordan).

    Not with numpy: its last digits depend on the machine, and all ranks must decide alike.
    """
    rows = [[*row, *columns] for row, columns in zip(matrix, right, strict=True)]
    for at in range(len(rows)):
        pivot = rows[at] = [value / rows[at][at] for value in rows[at]]
        for other, row in enumerate(rows):
            if other != at and (factor := row[at]):
                rows[other] = [value - factor * its for value, its in zip(row, pivot, strict=True)]
    return [row[len(matrix) :] for row in rows]
