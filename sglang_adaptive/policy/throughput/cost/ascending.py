"""Times never fall with more steps: the nearest ascending ones."""

from __future__ import annotations

from collections.abc import Sequence


def ascending(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the ascending values nearest to *values* in weighted squares: pool adjacent violators (Barlow 1972)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, mass, count = value, weight, 1
        while pools and pools[-1][0] > mean:
            before, more, others = pools.pop()
            mean, mass, count = (mean * mass + before * more) / (mass + more), mass + more, count + others
        pools.append((mean, mass, count))
    return [mean for mean, _, count in pools for _ in range(count)]
