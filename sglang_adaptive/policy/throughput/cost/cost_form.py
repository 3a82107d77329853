"""The parametric round time, for where nothing was measured.

    T(n, s) = a + b * s + c * n * (s + 1)        n requests, s draft steps

A round pays a fixed part, each draft step runs the draft model once, and verification grows with the tokens that
go through the target. The default ratios b/a and c/a are a least-squares fit to a table measured on an H200
(Llama-3.1-8B shape, EAGLE-3, relative error 4% in the mean, 12% at worst); the scale and, as cells become known,
the ratios follow this server.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

GUESSED_SCALE = 0.005
"""Seconds of the fixed part before anything was measured; only ratios matter to a decision."""
_GUESSES = ((1, 0), (1, 7), (64, 0), (64, 7))
_GUESS_WEIGHT = 0.05
"""Weight of a guess beside a known cell: how far the form is trusted, against how far the default ratios are."""


@dataclass(frozen=True, slots=True)
class CostForm:
    """The three coefficients, in seconds; never negative."""

    fixed: float = GUESSED_SCALE
    per_step: float = GUESSED_SCALE * 0.037
    per_token: float = GUESSED_SCALE * 0.00276

    def seconds(self, batch_size: int, steps: int) -> float:
        """Return the round time of *batch_size* requests at *steps*."""
        return self.fixed + self.per_step * steps + self.per_token * batch_size * (steps + 1)


Known = tuple[int, int, float]
"""Batch size, steps, seconds."""


def fit(known: Sequence[Known]) -> CostForm:
    """Return the form nearest to *known* in relative error, held to the default ratios where cells are few."""
    guess = CostForm()
    if not known:
        return guess
    scale = math.exp(sum(math.log(t / guess.seconds(n, s)) for n, s, t in known) / len(known))
    guesses = [(n, s, scale * guess.seconds(n, s)) for n, s in _GUESSES]
    # A coefficient below zero means that the cells do not settle it: lean on the guesses until they do.
    for weight in (_GUESS_WEIGHT, 10.0 * _GUESS_WEIGHT, 100.0 * _GUESS_WEIGHT):
        rows = [(1.0, *cell) for cell in known] + [(weight, *cell) for cell in guesses]
        found = _least_squares(rows)
        if found is not None and min(found) >= 0.0:
            return CostForm(*found)
    return CostForm(*(scale * c for c in (guess.fixed, guess.per_step, guess.per_token)))


def _least_squares(rows: Sequence[tuple[float, int, int, float]]) -> tuple[float, float, float] | None:
    """Minimise the weighted squared relative error: three normal equations, solved by Cramer's rule."""
    m = [[0.0] * 3 for _ in range(3)]
    r = [0.0] * 3
    for weight, batch_size, steps, seconds in rows:
        x = (1.0 / seconds, steps / seconds, batch_size * (steps + 1) / seconds)
        for i in range(3):
            r[i] += weight * x[i]
            for j in range(3):
                m[i][j] += weight * x[i] * x[j]
    whole = _determinant(m)
    size = m[0][0] * m[1][1] * m[2][2]
    if not size or abs(whole) < 1e-12 * size:
        return None
    found = []
    for column in range(3):
        replaced = [[r[i] if j == column else m[i][j] for j in range(3)] for i in range(3)]
        found.append(_determinant(replaced) / whole)
    return found[0], found[1], found[2]


def _determinant(m: Sequence[Sequence[float]]) -> float:
    return (
        m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1])
        - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
        + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0])
    )
