"""Monotone smoothing: a bigger batch or a deeper draft never takes less time."""

from __future__ import annotations

from collections.abc import Sequence


def monotone(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the non-decreasing sequence nearest to *values* in weighted least squares (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, mass, count = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            before, other, size = blocks.pop()
            mean = (mean * mass + before * other) / (mass + other)
            mass, count = mass + other, count + size
        blocks.append((mean, mass, count))
    return [mean for mean, _, count in blocks for _ in range(count)]
