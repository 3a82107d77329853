"""Times of the kinds at one batch size, fitted to differences, levels and what other batch sizes suggest.

The sum that docs/how-it-decides.md shows is minimized by least squares with weights 1 / (s^2 + error^2), a few times
over (Holland and Welsch 1977). It has several minima: from the measurements on, a wrong profile becomes the outlier;
from the base on, late readings do. The lower one counts. The second start brings 0.005 on a busy host (recorded noise).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from statistics import median

from sglang_adaptive.policy.throughput.base_cost import GUESSED
from sglang_adaptive.policy.throughput.readings import LONE

TURNS = 4
"""Times that the weights are found. With 5 the turns of an emulated replay change by 0.003 at most."""
LITTLE = math.sqrt(math.ulp(1.0))
"""Weight of what only decides where nothing was measured."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was measured at one batch size, as ``Place.export`` in ``readings`` returns it."""

    latest: int
    """The kind that ran last."""
    own: Sequence[tuple[int, float, float, int]]
    """Kind, level, deviation and readings."""
    pairs: Sequence[tuple[int, int, float, float, int, float]]
    """Two kinds, their difference, its deviation, the differences behind it, and the latest of them."""

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


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known at one batch size, in logarithms, by index of a kind; each fact with its variance."""

    own: Sequence[tuple[int, float, float]]
    pairs: Sequence[tuple[int, int, float, float]]
    expected: Sequence[tuple[float, float]]
    """The shape, of every kind."""
    measured: Collection[int]
    """The kinds in ``own``."""

    def level(self, x: Sequence[float]) -> float:
        """Return what the measured kinds of *x* are above the shape."""
        return median(x[at] - self.expected[at][0] for at, *_ in self.own)

    def errors(self, x: Sequence[float], level: float) -> tuple[list[float], list[float], list[float]]:
        """Return how far *x*, at this *level*, is off each level, each difference, and the shape of measured kinds."""
        return (
            [x[at] - value for at, value, _ in self.own],
            [x[b] - x[a] - value for a, b, value, _ in self.pairs],
            [x[at] - level - away if at in self.measured else 0.0 for at, (away, _) in enumerate(self.expected)],
        )

    def losses(self, x: Sequence[float]) -> list[float]:
        """Return the terms of the sum that the fit minimizes."""
        facts = zip((self.own, self.pairs, self.expected), self.errors(x, self.level(x)), strict=True)
        return [math.log1p(e * e / fact[-1]) for of, errors in facts for fact, e in zip(of, errors, strict=True)]

    def solve(self, x: Sequence[float], *, first: bool = False) -> tuple[list[float], Factor]:
        """Return the next x, and the factor of its equations; at *first* of the measurements alone, all trusted."""
        level = self.level(x)
        matrix, right = [[0.0] * len(x) for _ in x], [0.0] * len(x)
        for at, value, variance in self.own:
            weight = 1.0 / (variance if first else variance + (x[at] - value) ** 2)
            matrix[at][at] += weight
            right[at] += weight * value
        for a, b, value, variance in self.pairs:
            weight = 1.0 / (variance if first else variance + (x[b] - x[a] - value) ** 2)
            matrix[a][a] += weight
            matrix[b][b] += weight
            matrix[a][b] -= weight
            matrix[b][a] -= weight
            right[a] -= weight * value
            right[b] += weight * value
        for at, (away, variance) in enumerate(self.expected):
            error = x[at] - level - away if at in self.measured else 0.0
            weight = LITTLE if first else 1.0 / (variance + error**2)
            matrix[at][at] += weight
            right[at] += weight * (level + away)
        factor = Factor(matrix)
        return factor.solve(right), factor


def fit(evidence: Evidence, shape: Mapping[int, tuple[float, float]], *, from_base: bool = False) -> Fit:
    """Return the fit of the kinds in *evidence* and *shape*, which has the ``g_k`` and ``s`` of each expected kind.

    *from_base*: start there, too. Where the base is a guess, zero steps that were a quarter faster than guessed were
    then found 3,000 rounds later.
    """
    kinds = sorted({*(kind for kind, *_ in evidence.own), *shape})
    index = {kind: at for at, kind in enumerate(kinds)}
    own = [(index[kind], level, deviation**2) for kind, level, deviation, _ in evidence.own]
    pairs = [(index[a], index[b], value, deviation**2) for a, b, value, deviation, *_ in evidence.pairs]
    expected = [(away, deviation**2) for away, deviation in (shape.get(kind, (0.0, GUESSED)) for kind in kinds)]
    facts = _Facts(own, pairs, expected, {at for at, *_ in own})
    level = median(value - expected[at][0] for at, value, _ in own)
    ends = []
    for measured_alone in (True, False)[: 1 + from_base]:
        x, factor = facts.solve([level + away for away, _ in expected], first=measured_alone)
        for _ in range(TURNS - 1):
            x, factor = facts.solve(x)
        losses = facts.losses(x)
        ends.append((sum(losses), x, factor))
        if max(losses) < math.log(2.0):  # no fact contradicts: half the time of a hand-over
            break
    _, x, factor = min(ends, key=lambda end: end[0])
    _, errors, shape_errors = facts.errors(x, facts.level(x))
    now = index[evidence.latest]
    deviations = []
    for at in range(len(kinds)):
        variance = max(1e-9, factor.variance(at, now))
        # Facts that contradict the fit say that it may be as wrong itself, unless other facts hold it. So does the
        # shape: without it, one late reading hid the best depth for 2,000 rounds (0.932 of its speed on recorded text).
        found = [(error**2, pair[3]) for pair, error in zip(pairs, errors, strict=True) if at in pair[:2] and at != now]
        if shape and at != now:
            found.append((shape_errors[at] ** 2, max(LONE**2, expected[at][1])))
        wrong, its = max(found, default=(0.0, 1.0))
        deviations.append(math.sqrt(variance + wrong * variance / (variance + its)))
    return Fit({kind: x[at] - x[now] for kind, at in index.items()}, dict(zip(kinds, deviations, strict=True)))


class Factor:
    """The factors L D L^T of a symmetric positive definite matrix.

    Not with numpy: its last digits depend on the machine, and all ranks must decide alike.
    """

    def __init__(self, matrix: Sequence[Sequence[float]]) -> None:
        self._lower: list[list[float]] = []
        """Rows of L before its diagonal of ones."""
        self._diagonal: list[float] = []
        for row in matrix:
            scaled: list[float] = []  # the row of L times D
            for value, above in zip(row, self._lower, strict=False):
                scaled.append(value - sum(map(mul, scaled, above)))
            self._lower.append([value / pivot for value, pivot in zip(scaled, self._diagonal, strict=True)])
            self._diagonal.append(row[len(scaled)] - sum(map(mul, scaled, self._lower[-1])))

    def solve(self, right: Sequence[float]) -> list[float]:
        """Return the solution for one right-hand side."""
        found = [value / pivot for value, pivot in zip(self._forward(right), self._diagonal, strict=True)]
        for at in range(len(found) - 1, 0, -1):
            value = found[at]
            for before, factor in enumerate(self._lower[at]):
                found[before] -= factor * value
        return found

    def variance(self, one: int, other: int) -> float:
        """Return the variance of the difference of two unknowns, with the matrix as their precision."""
        right = [float(at == one) - float(at == other) for at in range(len(self._diagonal))]
        return sum(value * value / pivot for value, pivot in zip(self._forward(right), self._diagonal, strict=True))

    def _forward(self, right: Sequence[float]) -> list[float]:
        found: list[float] = []
        for value, row in zip(right, self._lower, strict=True):
            found.append(value - sum(map(mul, row, found)))
        return found
